"""What the README says is what the package does."""

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from calibrant import LAYERS
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


def listing():
    """The README's listing of the package, generated: lowest layer first, in the first lines of the docstrings."""
    lines = ["```", "src/calibrant/"]
    for room in (room for layer in LAYERS for room in layer):
        module = importlib.import_module(f"calibrant.{room}")
        name = f"{room}/" if hasattr(module, "__path__") else f"{room}.py"
        lines.append(f"  {name:<14} {module.__doc__.partition(chr(10))[0].rstrip('.')}")
    return "\n".join([*lines, "```"])


def generated(text):
    """The README with its generated parts written anew: `python tests/test_docs.py` does it."""
    for name, content in (("methods", methods_table()), ("listing", listing())):
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(start)
        text = f"{before}{start}{content}\n{end}{rest.partition(end)[2]}"
    return text


def test_what_is_generated_in_the_readme_is_up_to_date():
    assert README.count("| metric | `") == len(METRICS)
    assert generated(README) == README, "run `.venv/bin/python tests/test_docs.py` to write it anew"


def test_the_picture_shows_every_folder_of_the_package_and_no_other():
    picture = README.partition("```\n")[2].partition("```")[0]
    rooms = {room for layer in LAYERS for room in layer if (ROOT / "src" / "calibrant" / room).is_dir()}
    assert set(re.findall(r"(\w+)/", picture)) == rooms


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
    (ROOT / "README.md").write_text(generated(README))
