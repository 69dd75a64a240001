"""Files of rows: what is read is what was written, in any of the formats, or the file is refused."""

import csv
import io
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from hostile import SIZES, labels, logits, numpy_of, probs
from pyarrow import parquet

import calibrant as cb
from calibrant.io.files import read, write
from calibrant.io.sealed import load
from calibrant.registry import CALIBRATORS


def case(chance: random.Random, folder: Path) -> None:
    """Write a file, damage it sometimes, read it."""
    for left in folder.iterdir():
        left.unlink()
    chance.choice([table, table, archive, archive, round_trip, calibrator])(chance, folder)


def columns(chance: random.Random) -> tuple[dict[str, Any], bool]:
    """Arrays as `Predictions` takes them, and whether a file of them must be read."""
    n, k = chance.choice(SIZES), chance.choice([2, 3, 5])
    g = numpy_of(chance)
    if chance.random() < 0.3:
        sure = g.random(n)
        return {"confidence": sure, "correct": (g.random(n) < sure).astype(np.int64)}, True
    kind = chance.choice(["logits", "probs"])
    scores = np.clip(logits(chance, n, k), -1e30, 1e30) if kind == "logits" else probs(chance, n, k)
    y = labels(chance, scores)
    found: dict[str, Any] = {kind: scores, "labels": y}
    looks = (
        kind == "logits" and (scores >= 0).all() and (scores <= 1).all() and np.allclose(scores.sum(1), 1, atol=2e-3)
    )
    if chance.random() < 0.4:
        names = [chance.choice("abcxyz") + str(j) + chance.choice(["", " ", "ü", ".0"]) for j in range(k)]
        names = [name.strip() for name in names]
        found |= {"classes": np.array(names), "labels": np.array(names)[y]}
    if chance.random() < 0.2:
        found["groups"] = np.array([chance.choice(["a", "b c", "d,e", 'f"g']) for _ in range(n)])
    return found, not looks


def expected(arrays: dict[str, Any]) -> cb.Predictions | None:
    try:
        return cb.Predictions(**arrays)
    except ValueError:
        return None  # below chance without the order of the columns


def compare(found: cb.Predictions, arrays: dict[str, Any], tolerance: float = 0.0) -> None:
    right = expected(arrays)
    assert right is not None, "read from a file, and refused as arrays"
    assert len(found) == len(right), "number of rows"
    assert np.allclose(found.confidence.numpy(), right.confidence.numpy(), atol=tolerance), "confidence"
    assert np.array_equal(found.correct.numpy(), right.correct.numpy()), "correct"
    if right.groups is not None:
        assert found.groups.tolist() == right.groups.tolist(), "groups"


def attempt(path: Path, arrays: dict[str, Any], *, whole: bool, tolerance: float = 0.0) -> None:
    """Read; a whole file must give its rows, a damaged one a refusal or the same rows."""
    try:
        found = read(path)
    except (ValueError, TypeError) as error:
        assert not whole or expected(arrays) is None, f"a whole file refused: {error}"
        raise
    if whole:
        compare(found, arrays, tolerance)


def damaged(chance: random.Random, path: Path) -> bool:
    """Damage a file, sometimes; return whether."""
    if chance.random() < 0.6:
        return False
    blob = bytearray(path.read_bytes())
    kind = chance.randrange(4)
    if kind == 0 and blob:
        for _ in range(chance.choice([1, 5])):
            blob[chance.randrange(len(blob))] = chance.randrange(256)
    elif kind == 1:
        blob = blob[: chance.randrange(len(blob) + 1)]
    elif kind == 2:
        at = chance.randrange(len(blob) + 1)
        blob[at:at] = bytes(chance.randrange(256) for _ in range(chance.choice([1, 40])))
    else:
        blob = bytearray(bytes(chance.randrange(256) for _ in range(chance.choice([0, 10, 500]))))
    path.write_bytes(bytes(blob))
    return True


def flat(arrays: dict[str, Any]) -> dict[str, list[Any]]:
    """One column for each class."""
    out: dict[str, list[Any]] = {}
    for name, values in arrays.items():
        if name == "classes":
            continue
        if np.ndim(values) == 2:
            names = arrays.get("classes", np.arange(values.shape[1]).astype(str))
            out |= {f"{name}_{each}": values[:, j].tolist() for j, each in enumerate(names.tolist())}
        else:
            out[name] = np.asarray(values).tolist()
    return out


def table(chance: random.Random, folder: Path) -> None:
    arrays, good = columns(chance)
    held = flat(arrays)
    if chance.random() < 0.3:
        held["extra"] = ["x"] * len(next(iter(held.values())))
    order = list(held)
    names = [name for name in order if not name.startswith(("logits_", "probs_"))]
    if chance.random() < 0.5:  # columns of scores keep their order, the others may stand anywhere
        chance.shuffle(names)
        order = [*names[: len(names) // 2], *(name for name in order if name not in names), *names[len(names) // 2 :]]
    if chance.random() < 0.5:
        path = folder / "rows.csv"
        text = io.StringIO()
        writer = csv.writer(text, lineterminator=chance.choice(["\n", "\r\n"]))
        writer.writerow(order)
        writer.writerows(
            zip(*([repr(v) if isinstance(v, float) else v for v in held[name]] for name in order), strict=True)
        )
        path.write_text(text.getvalue(), encoding=chance.choice(["utf-8", "utf-8-sig"]), newline="")
    else:
        path = folder / "rows.parquet"
        parquet.write_table(pa.table({name: held[name] for name in order}), path)
    attempt(path, arrays, whole=not damaged(chance, path) and good)


def archive(chance: random.Random, folder: Path) -> None:
    arrays, good = columns(chance)
    path = folder / "rows.npz"
    if chance.random() < 0.3:
        for name in ("logits", "probs"):
            if name in arrays:
                arrays[name] = arrays[name].astype(np.float32)
                good &= bool(np.isfinite(arrays[name]).all())
    (np.savez if chance.random() < 0.5 else np.savez_compressed)(path, **arrays, unused=np.zeros(3))
    if chance.random() < 0.1:
        with zipfile.ZipFile(path, "a") as file:
            file.writestr(chance.choice(["features.npy", "weights.npy", "../evil", "groups"]), b"\x80\x04]")
        good = False
    attempt(path, arrays, whole=not damaged(chance, path) and good)


def round_trip(chance: random.Random, folder: Path) -> None:
    arrays, good = columns(chance)
    p = expected(arrays)
    if p is None or p.k is None or not good:
        return
    write(folder / "rows.npz", p)
    again = read(folder / "rows.npz") if np.ptp(p.logits.numpy()) else None
    if again is not None:
        assert np.allclose(again.confidence.numpy(), p.confidence.numpy(), atol=1e-12), "confidence"
        assert np.array_equal(again.labels.numpy(), p.labels.numpy()), "labels"
        assert again.classes == p.classes, "classes"


def calibrator(chance: random.Random, folder: Path) -> None:
    """A saved calibrator, damaged or not."""
    g = numpy_of(chance)
    z = 2 * g.normal(size=(60, 3))
    cal = CALIBRATORS[chance.choice(["temperature", "vector", "platt", "isotonic"])].fit(z, g.integers(0, 3, 60))
    path = folder / "cal.safetensors"
    cal.save(path)
    spoiled = damaged(chance, path)
    again = load(path)
    assert not spoiled or path.read_bytes(), "a damaged file was loaded"
    rows = torch.from_numpy(z)
    assert torch.equal(again(rows), cal(rows)), "another answer"
