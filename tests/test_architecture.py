"""Arrows point one way, imports stay light, files stay short, nothing global is touched."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "calibrant"

# From the nouns up. A module may import only modules of a lower level, or of its own folder.
LEVELS = [
    {"nouns", "records", "registry", "words", "distributed", "presets"},
    {"check", "facts", "statement", "batch", "writing", "naming"},
    {"labelling", "sealing", "fusing"},
    {"reading"},
    {"predictions"},
    {"scores", "metrics"},
    {"losses", "penalties"},
    {"fitting", "criterion", "loss_shapes", "models", "datasets", "corruptions"},
    {"calibrators"},
    {"curves", "resampling"},
    {"evidence", "prior", "margins", "collecting"},
    {
        "slices",
        "advice",
        "report",
        "crossfitting",
        "label_shift",
        "selection",
        "training",
        "trust",
        "shifts",
        "reporting",
    },
    {"auditing", "loading", "choosing", "outliers", "trusting"},
    {"autocalibration"},
    {"files", "gate", "calibrating", "integrations"},
    {"demo"},
    {"cli"},
]
LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}


def imports(path):
    """Yield the parts of the package that a file imports at run time, lazily or not."""
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
        if isinstance(node, ast.ImportFrom) and node.module == "calibrant":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("calibrant."):
            yield node.module.split(".")[1]


def files():
    return [p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py"]


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_import_goes_against_the_arrows(path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for other in imports(path):
        assert other == own or LEVEL[other] < LEVEL[own], f"{own} imports {other}"


def test_every_part_has_a_level_and_every_level_a_part():
    parts = {p.relative_to(SOURCE).parts[0].removesuffix(".py") for p in files()}
    assert parts == set(LEVEL)


def test_the_report_reads_records_and_computes_nothing():
    for path in (SOURCE / "report").glob("*.py"):
        assert set(imports(path)) <= {"records", "registry", "report", "words"}, path.name


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
        assert len(path.read_text().splitlines()) <= 250, path.name


def test_no_pickle_is_read_or_written():
    for path in files():
        if path == SOURCE / "datasets" / "arrays_only.py":
            continue  # CIFAR comes as pickles: it builds arrays of them and runs nothing, which its own tests show
        text = path.read_text()
        assert not re.search(r"^\s*(import|from) pickle|torch\.load\(|allow_pickle=True", text, re.M), path.name


def test_development_requirements_are_those_of_pyproject():
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == group
