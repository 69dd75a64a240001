"""What the README says is what the package does."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from calibrant.registry import ALL, METRICS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def methods_table():
    """The README's table, generated: `python tests/test_docs.py` writes it."""
    lines = ["| kind | name | what it is |", "|---|---|---|"]
    for registry in ALL:
        for entry in registry.entries():
            summary = entry.summary.replace("|", "\\|")
            lines.append(f"| {entry.kind} | `{entry.name}` | {summary} |")
    return "\n".join(lines)


def with_table(text):
    return re.sub(
        r"(<!-- methods -->\n).*?(<!-- end of methods -->)",
        lambda m: m[1] + methods_table() + "\n" + m[2],
        text,
        flags=re.S,
    )


def test_the_table_of_methods_is_that_of_the_registries():
    assert README.count("| metric | `") == len(METRICS)
    assert with_table(README) == README, "run `.venv/bin/python tests/test_docs.py` to write the table anew"


def test_the_picture_names_only_folders_and_files_that_exist_or_are_marked_as_planned():
    listing = README.partition("```\nsrc/calibrant/")[2].partition("```")[0]
    names = re.findall(r"^  ([\w.]+/?)", listing, re.M)
    assert len(names) > 10
    for name in names:
        assert (ROOT / "src" / "calibrant" / name).exists(), name
    for path in (ROOT / "src" / "calibrant").iterdir():
        if path.name not in {"__pycache__", "py.typed", "__init__.py"}:
            assert path.name + ("/" if path.is_dir() else "") in names, path.name


def test_the_python_of_the_tour_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert blocks
    code = "\n".join(blocks)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").exists()
    promised = re.findall(r"# -> (.*)", code)
    assert len(promised) == 6
    for line in promised:
        assert line in done.stdout


@pytest.mark.parametrize("line", re.findall(r"^calibrant .*", README, re.M))
def test_the_commands_of_the_tour_run(line, tmp_path):
    g = np.random.default_rng(0)
    for name in ("preds", "val", "test"):
        np.savez(tmp_path / f"{name}.npz", logits=3 * g.normal(size=(300, 4)), labels=g.integers(0, 4, 300))
    command, *arguments = shlex.split(line.partition("  #")[0])
    program = [sys.executable, "-c", "from calibrant.cli import main; main()"]
    assert command == "calibrant"
    done = subprocess.run([*program, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, 3), done.stderr


if __name__ == "__main__":
    (ROOT / "README.md").write_text(with_table(README))
