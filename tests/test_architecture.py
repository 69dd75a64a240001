"""Imports follow the layers, stay light and have no cycles; files are short; dependencies are the declared ones."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from calibrant import LAYERS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "calibrant"

LAYER = {name: i for i, layer in enumerate(LAYERS) for name in layer}


def imports(path, *, modules=False):
    """Yield what a file imports of the package at run time, inside functions too: folders, or whole module names."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        found = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "calibrant":
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found = [alias.name for alias in node.names if alias.name.split(".")[0] == "calibrant"]
        for name in found:
            parts = name.split(".")
            if modules:
                yield next(".".join(parts[:i]) for i in range(len(parts), 0, -1) if ".".join(parts[:i]) in MODULES)
            elif len(parts) > 1:
                yield parts[1]


def files():
    return [p for p in SOURCE.rglob("*.py") if p not in (SOURCE / "__init__.py", SOURCE / "__main__.py")]


def module_of(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {"calibrant": SOURCE / "__init__.py", **{module_of(path): path for path in files()}}


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_import_goes_against_the_arrows(path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for other in imports(path):
        assert other == own or LAYER[other] < LAYER[own], f"{own} imports {other}"


def test_no_module_imports_itself_through_others():
    graph = {name: set(imports(path, modules=True)) - {name} for name, path in MODULES.items()}
    while free := [name for name, needs in graph.items() if not needs & graph.keys()]:
        for name in free:
            del graph[name]
    assert not graph, f"modules that import each other in a circle, or need one that does: {sorted(graph)}"


def test_the_top_of_the_package_is_the_list_of_layers():
    own = {"__init__.py", "__main__.py", "__pycache__", "py.typed"}
    names = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if path.name not in own}
    assert names == set(LAYER)
    assert len(names) <= 15


# Modules that are no method: the steps of the picture that a folder of methods holds beside them.
STEPS = {
    "metrics": {"bins", "binomial", "blocks", "curves", "delong", "evidence", "inputs"},
    "losses": {"compiled", "confidence", "criterion", "distributed", "focal_family", "functional", "presets", "shapes"},
    "calibrators": {"apply", "autocalibrate", "calibrator", "cross_fit", "export", "label_shift", "prior"},
    "trust": {"learned", "predictor"},
    "training/models": {"build"},
    "training/datasets": {"dataset", "pickles", "splits"},
    "training/corruptions": {"corrupt"},
}


@pytest.mark.parametrize("folder", STEPS)
def test_a_module_of_a_folder_of_methods_registers_one_or_is_a_step(folder):
    open_modules = {p.stem: p.read_text() for p in (SOURCE / folder).glob("*.py") if not p.stem.startswith("_")}
    others = {name for name, text in open_modules.items() if not re.search(r"^@(\w+\.register|metric)\(", text, re.M)}
    assert others == STEPS[folder], "put shared machinery into a folder or file that begins with an underscore"


def test_modules_are_imported_by_name_only_where_that_is_the_point():
    """An import by a string escapes the tests of layers and cycles."""
    lazy_names = {"__init__.py", "selection/__init__.py"}  # public names, resolved when first used
    discovery = {"registry.py"}  # methods, found by their folder
    optional = {"calibrators/export.py", "training/models/build.py"}  # packages that may be missing
    found = {
        str(p.relative_to(SOURCE))
        for p in SOURCE.rglob("*.py")
        if re.search(r"import_module|__import__", p.read_text())
    }
    assert found == lazy_names | discovery | optional


def test_imports_name_what_they_import():
    """A relative import, or `import calibrant` and an attribute of it, would escape the tests of layers and cycles."""
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            relative = isinstance(node, ast.ImportFrom) and node.level > 0
            whole = isinstance(node, ast.Import) and any(
                alias.name.split(".")[0] == "calibrant" for alias in node.names
            )
            escapes = relative or whole
            assert not escapes, f"{path.name}:{node.lineno}"


def test_private_machinery_is_used_only_by_its_own_folder():
    for path in files():
        for name in imports(path, modules=True):
            private = [i for i, part in enumerate(name.split(".")) if part.startswith("_")]
            if private:
                home = ".".join(name.split(".")[: private[0]])
                assert f"{module_of(path)}.".startswith(f"{home}."), f"{module_of(path)} imports {name}"


def test_the_report_reads_records_and_computes_nothing():
    for path in (SOURCE / "report").glob("*.py"):
        assert set(imports(path)) <= {"records", "registry", "report"}, path.name


@pytest.mark.parametrize(
    "statement",
    [
        "import calibrant",
        "import calibrant as cb; cb.Predictions; cb.registry.METRICS['brier']",
        "import calibrant.cli",
    ],
)
def test_importing_stays_light(statement):
    heavy = {"matplotlib", "sklearn", "lightning", "ray", "pandas", "jinja2", "torchmetrics", "transformers"}
    heavy |= {"PIL", "timm", "torch._dynamo"}
    code = f"{statement}; import sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_imports_with_only_its_declared_dependencies():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    allowed = {re.split(r"[<>=]", name)[0] for name in declared} | {"calibrant", "jaxtyping", "pyarrow"}
    allowed.add("PIL")  # it comes with matplotlib
    used = set()
    for path in [*files(), SOURCE / "__init__.py"]:
        if path.parent.name == "integrations":
            continue  # what it integrates with is an extra
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                used |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                used.add(node.module.split(".")[0])
    assert used - set(sys.stdlib_module_names) <= allowed


def test_without_jaxtyping_the_nouns_are_plain_tensors():
    code = (
        "import sys; sys.modules['jaxtyping'] = None\n"
        "import calibrant as cb, torch\n"
        "from calibrant.predictions.types import Logits\n"
        "assert Logits is torch.Tensor\n"
        "print(cb.Predictions(confidence=[0.5, 0.7], correct=[True, False]).understood)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2 rows, confidence and correctness, accuracy 0.500"


def test_files_are_short_and_named_after_what_they_hold():
    for path in files():
        assert path.name not in {"utils.py", "helpers.py", "misc.py", "common.py", "base.py"}
        assert len(path.read_text().splitlines()) <= 400, path.name


def test_no_pickle_is_read_or_written():
    for path in files():
        if path == SOURCE / "training" / "datasets" / "pickles.py":
            continue  # CIFAR comes as pickles: it builds arrays of them and runs nothing, which its own tests show
        text = path.read_text()
        assert not re.search(r"^\s*(import|from) pickle|torch\.load\(|allow_pickle=True", text, re.M), path.name


def test_development_requirements_are_those_of_pyproject():
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == group
