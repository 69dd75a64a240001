"""Wheel and sdist hold the whole package and work where the checkout is not; what they say of themselves is true."""

import ast
import importlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*command, cwd, **environment):
    """Run a command without what the tests' own environment says of Python, and return what it printed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=clean | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of a wheel and an sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module", params=["*.whl", "*.tar.gz"], ids=["wheel", "sdist"])
def installed(built, request, tmp_path_factory):
    """The Python of an environment that holds this package alone; it finds the dependencies where the tests have them.

    A path in a .pth file is searched last, and .pth files found there, as that of an editable install, do nothing.
    """
    home = tmp_path_factory.mktemp("environment")
    venv.create(home)
    python = home / "bin" / "python"
    (packages,) = (home / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(str(Path(torch.__file__).parents[1]))
    (file,) = built.glob(request.param)
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-index", "--no-deps", "--no-compile", "--no-build-isolation", "--ignore-installed", file, cwd=home)
    return python


def package_files(folder):
    return {
        str(path.relative_to(folder))
        for path in (folder / "calibrant").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_the_package_and_no_other(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
    assert names == package_files(SOURCE)
    assert {Path(name).suffix for name in names} >= {".py", ".html", ".css", ".js", ".toml", ".npz", ".typed"}


def test_the_sdist_holds_the_package_and_its_papers(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    papers = {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "pyproject.toml"}
    assert names - {"PKG-INFO", ".gitignore"} == papers | {f"src/{name}" for name in package_files(SOURCE)}


def test_an_installed_package_works_where_the_checkout_is_not(installed, tmp_path):
    code = "import calibrant as c, importlib.metadata as m; print(c.__file__, c.__version__, m.version('calibrant'))"
    file, *versions = run(installed, "-c", code, cwd=tmp_path).split()
    assert Path(file).is_relative_to(installed.parent.parent)
    assert versions == [PROJECT["version"]] * 2
    helped = run(installed, "-m", "calibrant", "--help", cwd=tmp_path, COLUMNS="100")
    assert "audit" in helped
    program = installed.with_name("calibrant")
    assert "temperature" in run(program, "methods", cwd=tmp_path)
    g = np.random.default_rng(0)
    np.savez(tmp_path / "preds.npz", logits=3 * g.normal(size=(300, 4)), labels=g.integers(0, 4, 300))
    run(program, "audit", "preds.npz", "--report", "report.html", cwd=tmp_path)
    assert "</html>" in (tmp_path / "report.html").read_text()


def test_one_place_says_which_torch_is_accepted_and_one_which_is_tested():
    (accepted,) = (Requirement(line) for line in PROJECT["dependencies"] if line.startswith("torch"))
    (tested,) = re.findall(r"\d[\d.]*", (ROOT / "constraints.txt").read_text())
    assert accepted.specifier.contains(tested)
    others = [ROOT / "Makefile", ROOT / "requirements-dev.txt", *(ROOT / ".github").rglob("*.yml")]
    for path in [*others, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        assert not re.search(r"torch *[=<>~]=? *\d", path.read_text()), f"{path.name} repeats the version of torch"


def test_the_links_of_the_readme_work_on_a_package_page():
    text = re.sub(r"```.*?```|`[^`\n]*`", "", (ROOT / "README.md").read_text(), flags=re.S)
    links = re.findall(r"\]\(([^)\s]+)", text) + re.findall(r"(?:src|href)=\"([^\"]+)", text)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_every_extra_serves_something_in_the_package():
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    extras = PROJECT["optional-dependencies"]
    for first, *_ in extras.values():
        module = {"scikit-learn": "sklearn"}.get(name := Requirement(first).name, name)
        assert re.search(rf"\b{module}\b", text), name
    assert set(re.findall(r"calibrant\[(\w+)\]", text)) <= set(extras)


def test_version_and_authors_are_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {PROJECT['version']}\n" in citation
    assert f"- name: {PROJECT['authors'][0]['name']}\n" in citation
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("path", [*ROOT.glob("benchmarks/*/*.py"), *ROOT.glob("examples/*.py")], ids=lambda p: p.stem)
def test_what_benchmarks_and_examples_import_is_there(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "calibrant":
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
