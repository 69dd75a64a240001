"""A fuzzer: random good and bad input for every way into the package, judged by slow oracles.

    .venv/bin/python tests/fuzz/fuzz.py --cases 20000 --seed 1      # every target in turn
    .venv/bin/python tests/fuzz/fuzz.py --minutes 60 --seed 7       # or `make fuzz`
    .venv/bin/python tests/fuzz/fuzz.py --target metrics --seed 1 --case 123   # one case again, with its traceback

A case is drawn from a generator seeded by the seed, the target and the number of the case, so that it can be run again
by itself. It ends well in two ways: the package gives an answer that an independent computation confirms, or it
refuses with one sentence, raised on purpose (`calibrant.cli.refusals.refused`). Anything else is a finding: an
error that leaked from elsewhere, a refusal of good input, a wrong answer, a warning, or a case that takes a minute.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import NoReturn

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import calibrators
import commands
import doors
import files
import losses
import metrics
import selection
import torch

from calibrant.cli.refusals import refused

TARGETS = {m.__name__: m for m in (doors, metrics, losses, selection, files, calibrators, commands)}
SHARES = {"doors": 6, "metrics": 6, "losses": 4, "selection": 4, "files": 4, "calibrators": 1, "commands": 1}
LONGEST = 60  # seconds of a case


class TooLong(Exception):
    """A case took longer than a minute."""


def too_long(*_: object) -> NoReturn:
    """Stop the case at hand."""
    raise TooLong


def drawn(target: str, seed: int, case: int) -> random.Random:
    """Return the generator of a case, and seed torch's."""
    chance = random.Random(f"{seed} {target} {case}")
    torch.manual_seed(chance.randrange(2**31))
    return chance


def one(target: str, seed: int, case: int, folder: Path) -> str:
    """Run one case; return how it ended: "answered", "refused", or the finding in words."""
    chance = drawn(target, seed, case)
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LONGEST)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            TARGETS[target].case(chance, folder)
    except TooLong:
        return f"took more than {LONGEST} seconds"
    except AssertionError as error:
        return f"wrong: {error}"
    except Exception as error:
        said = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        if refused(error) and "\n" not in said and said.rstrip(")").endswith((".", "?")):
            return "refused"
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        return f"leaked: {type(error).__name__} at {place}: {said[:200]!r}"
    finally:
        signal.alarm(0)
    return "answered"


def run(targets: list[str], seed: int, cases: int | None, minutes: float | None) -> int:
    """Run many cases, print every finding with the command that repeats it, and return how many there were."""
    ended: Counter[tuple[str, str]] = Counter()
    findings, began, number = 0, time.monotonic(), 0
    turn = [name for name in targets for _ in range(SHARES[name])]
    numbers = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        while (cases is None or number < cases) and (minutes is None or time.monotonic() - began < 60 * minutes):
            target = turn[number % len(turn)]
            outcome = one(target, seed, numbers[target], Path(folder))
            if outcome not in ("answered", "refused"):
                findings += 1
                print(f"--target {target} --seed {seed} --case {numbers[target]}: {outcome}", flush=True)
            ended[target, outcome if outcome in ("answered", "refused") else "finding"] += 1
            numbers[target] += 1
            number += 1
    for target in targets:
        told = ", ".join(f"{ended[target, how]} {how}" for how in ("answered", "refused", "finding"))
        print(f"{target:<12} {numbers[target]:>6} cases: {told}")
    print(f"{number} cases of seed {seed} in {time.monotonic() - began:.0f} s: {findings} findings")
    return findings


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", choices=[*TARGETS], action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--case", type=int)
    given = parser.parse_args()
    torch.set_num_threads(1)
    targets = given.target or [*TARGETS]
    if given.case is not None:
        with tempfile.TemporaryDirectory() as folder:
            TARGETS[targets[0]].case(drawn(targets[0], given.seed, given.case), Path(folder))
        print("answered")
        return
    cases = 2000 if given.cases is None and given.minutes is None else given.cases
    sys.exit(1 if run(targets, given.seed, cases, given.minutes) else 0)


if __name__ == "__main__":
    main()
