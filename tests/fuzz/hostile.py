"""Random input, good and bad: arrays of every kind, labels, options. Good input is marked as such."""

import math
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

SIZES = (1, 2, 3, 5, 8, 20, 60)
WIDTHS = (2, 2, 3, 4, 10)
JUNK = (None, "x", "", [], {}, object(), 1j, math.nan, b"\xff", [[1], [1, 2]], {"a": 1}, np.array("x"), 10**400, True)


def numpy_of(chance: random.Random) -> np.random.Generator:
    return np.random.default_rng(chance.randrange(2**32))


def logits(chance: random.Random, n: int, k: int) -> np.ndarray:
    """Finite logits: ordinary, tied, saturated, enormous, tiny, shifted, constant."""
    g = numpy_of(chance)
    z = g.normal(size=(n, k))
    kind = chance.randrange(10)
    if kind == 0:
        z = np.round(2 * z)  # ties
    elif kind == 1:
        z *= 30  # saturated
    elif kind == 2:
        z *= chance.choice([1e4, 1e20, 1e30])
    elif kind == 3:
        z *= 1e-8
    elif kind == 4:
        z += chance.choice([-1e4, 1e4])
    elif kind == 5:
        z[:] = chance.choice([0.0, -3.0, 7.5])
    elif kind == 6:
        z = z[g.integers(0, max(1, n // 3), n)]  # repeated rows
    else:
        z *= 3
    return z


def probs(chance: random.Random, n: int, k: int) -> np.ndarray:
    """Rows that sum to 1, some of them one-hot or rounded."""
    z = np.clip(logits(chance, n, k), -1e3, 1e3)
    e = np.exp(z - z.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    kind = chance.randrange(5)
    if kind == 0:
        p = np.eye(k)[p.argmax(1)]
    elif kind == 1:
        p = np.round(p, 2)
        p /= p.sum(1, keepdims=True)
    return p


def labels(chance: random.Random, scores: np.ndarray) -> np.ndarray:
    """Classes: drawn from the scores, always right, at random, or all the same."""
    g, (n, k) = numpy_of(chance), scores.shape
    kind = chance.randrange(4)
    if kind == 0:
        return scores.argmax(1)
    if kind == 1:
        return np.full(n, chance.randrange(k))
    if kind == 2:
        return g.integers(0, k, n)
    return np.where(g.random(n) < 0.7, scores.argmax(1), g.integers(0, k, n))


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def dressed(chance: random.Random, array: np.ndarray, *, exact: bool = False) -> tuple[Any, np.ndarray]:
    """The same array in some guise that must make no difference, and its values as float64 (or as they are).

    ``exact`` keeps the type of whole numbers and of bools.
    """
    if array.dtype.kind != "f" or exact:
        kind = chance.choice(["torch", "numpy", "list", "strided", "readonly", "fortran"])
    else:
        kind = chance.choice(
            ["torch", "numpy", "list", "strided", "readonly", "fortran", "single", "narrow", "grad", "big"]
        )
    if kind == "narrow":
        dtype = chance.choice(FLOATS)
        with np.errstate(over="ignore"):
            found = torch.from_numpy(array.copy()).to(dtype)
        return found, found.double().numpy()
    if kind == "single":
        with np.errstate(over="ignore"):
            single = array.astype(np.float32)
        return single, single.astype(np.float64)
    if kind == "big":
        return array.astype(array.dtype.newbyteorder(">")), array
    if kind == "torch":
        return torch.from_numpy(array.copy()), array
    if kind == "grad":
        return torch.from_numpy(array.copy()).requires_grad_(), array
    if kind == "list":
        return array.tolist(), array
    if kind == "strided":
        return np.repeat(array, 2, 0)[::2][::-1][::-1], array
    if kind == "readonly":
        fixed = array.copy()
        fixed.flags.writeable = False
        return fixed, array
    if kind == "fortran":
        return np.asfortranarray(array), array
    return array.copy(), array


def spoiled(chance: random.Random, array: np.ndarray) -> tuple[Any, bool]:
    """The array with something wrong: a value, a shape, a type, or something else altogether.

    The second value says whether nobody may accept it in place of that array, beside others of as many rows.
    """
    kind = chance.randrange(9)
    out = np.array(array, dtype=np.float64) if array.dtype.kind in "fiub" else array.copy()
    if kind == 0 and out.size:
        out.reshape(-1)[chance.randrange(out.size)] = chance.choice([math.nan, math.inf, -math.inf])
        return out, True
    if kind == 1:
        return out[: len(out) // 2], len(out) > 1
    if kind == 2:
        return out[None], len(out) > 1
    if kind == 3:
        dtype = chance.choice([complex, object, str, np.int8, bool])
        with np.errstate(invalid="ignore"):
            return out.astype(dtype, copy=True), dtype in (complex, str)
    if kind == 4:
        return out[:0], True
    if kind == 5:
        return out * chance.choice([-1, 100, 0.5, 1e300]) + chance.choice([0, 1, -100]), False
    if kind == 6:
        dtype = chance.choice([torch.complex64, torch.float8_e4m3fn, torch.bool, torch.uint8])
        return torch.from_numpy(out).to(dtype), dtype == torch.complex64
    if kind == 7:
        return np.ma.masked_array(out, mask=np.arange(out.size).reshape(out.shape) == 0), out.size > 0
    junk = chance.choice(JUNK)
    return junk, junk is not None


@dataclass
class Given:
    """Arguments of a call, and the values that a right answer must be computed from."""

    arguments: dict[str, Any] = field(default_factory=dict)
    truth: dict[str, np.ndarray] = field(default_factory=dict)
    good: bool = True
    hopeless: bool = False  # something in it must be refused

    def add(
        self, chance: random.Random, name: str, array: np.ndarray, *, exact: bool = False, bad: float = 0.04
    ) -> None:
        """Add an array under its name, sometimes spoiled; one at most, for two that are cut alike fit again."""
        if chance.random() < bad and self.good:
            self.arguments[name], hopeless = spoiled(chance, array)
            self.good, self.hopeless = False, self.hopeless or hopeless
        else:
            self.arguments[name], self.truth[name] = dressed(chance, array, exact=exact)


def close(found: float, expected: float, tolerance: float) -> bool:
    """Whether two numbers agree; NaN agrees with NaN, and an infinity with itself."""
    found, expected = float(found), float(expected)
    if math.isnan(found) or math.isnan(expected):
        return math.isnan(found) and math.isnan(expected)
    if math.isinf(found) or math.isinf(expected):
        return found == expected
    return abs(found - expected) <= tolerance * max(1.0, abs(expected))
