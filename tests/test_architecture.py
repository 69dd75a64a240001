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

LAYER = {room: i for i, layer in enumerate(LAYERS) for room in layer}


def imports(path, *, modules=False):
    """Yield what a file imports of the package at run time, inside functions too: rooms, or whole module names."""
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


def test_the_rooms_are_those_of_the_list_and_at_most_fifteen():
    own = {"__init__.py", "__main__.py", "__pycache__", "py.typed"}
    rooms = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if path.name not in own}
    assert rooms == set(LAYER)
    assert len(rooms) <= 15


def test_private_machinery_is_used_only_by_its_own_room():
    for path in files():
        for name in imports(path, modules=True):
            private = [i for i, part in enumerate(name.split(".")) if part.startswith("_")]
            if private:
                home = ".".join(name.split(".")[: private[0]])
                assert module_of(path).startswith(home), f"{module_of(path)} imports {name}"


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
