"""Feature clipping."""

from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from calibrant.calibrators.calibrator import Calibrator, Objective
from calibrant.metrics.binned import top_label_ece
from calibrant.metrics.bins import assign
from calibrant.predictions import checks
from calibrant.predictions.facts import CHUNK
from calibrant.predictions.fit_data import FitData, of_call, of_fit
from calibrant.predictions.types import Array, Vector
from calibrant.registry import CALIBRATORS

GRID = np.arange(1, 2001) / 100  # 0.01, 0.02, ..., 20.00
BINS = 15
KEPT = 0.99  # of the accuracy, which a clip must exceed
EQUAL = 1e-9  # ECEs closer than this are a tie
AGREES = 0.01  # of the largest logit: how far the layer may be from the logits (half precision, TF32)


@CALIBRATORS.register(keeps_argmax=False, needs_features=True, parameters="1")
class FeatureClipping(Calibrator):
    r"""Feature clipping: cut the penultimate features at one number c, and apply the last layer again.

    .. math:: z \mapsto W\,\mathrm{clip}(f, -c, c) + b \;=\; z + W\,(\mathrm{clip}(f, -c, c) - f)

    c is the value of 0.01, 0.02, ..., 20.00 of least 15-bin ECE on the rows, among those that leave more than 0.99 of
    the accuracy; the smallest wins ties. It is computed by the form on the right, so that a row without a large feature
    keeps its logits to the last bit. ``weight`` (k, d) and ``bias`` (k,) are those of the classifier's last linear
    layer ((1, d) and (1,) for two classes with one logit). They must reproduce the logits to 1 % of the largest one;
    otherwise the features are of another layer, or the logits were changed. If no c keeps the accuracy, or none lowers
    the ECE, the logits are left as they are.

    As c grows, each entry of the features stops being cut once. So the whole grid is searched exactly at the price of
    one product with the weights, and one softmax of the logits a value of c; the search ends at the largest feature.

    ECE is a poor guide on few rows: its minimum is then noise, and the log loss may rise. The scale of the features
    must suit the grid.

    Reference: Tao, Dong & Xu, "Feature clipping for uncertainty calibration", AAAI 2025.

    Example:
        >>> features, weight = torch.tensor([[0.2, 3.0, -4.0]] * 4), torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0]])
        >>> cal = FeatureClipping.fit(features @ weight.T, [1, 1, 1, 0], features, weight=weight)
        >>> cal.clip.item(), cal(features @ weight.T, features)[0].softmax(0)  # right three times of four
        (0.87, tensor([0.2488, 0.7512]))
    """

    feature_tensor = "weight"
    clip: Tensor
    weight: Tensor

    @classmethod
    def fit(
        cls, logits: Any, labels: Any = None, features: Any = None, *, weight: Any, bias: Any = None
    ) -> "FeatureClipping":
        """Fit on held-out rows, their features and the layer that made logits of them."""
        rows = FitData.read(logits, labels, features)
        inputs = of_fit(rows)
        layer, offset = _layer(weight, bias, rows.k, inputs.shape[1])
        away = float((inputs @ layer.T + offset - rows.given.cpu()).abs().max())
        largest = float(rows.given.abs().max())
        if not away <= AGREES * max(largest, 1.0):
            raise ValueError(
                f"features @ weight.T + bias must reproduce the logits to {AGREES:.0%} of the largest ({largest:.4g}); "
                f"it misses one by {away:.4g}. Pass the input and the parameters of the layer that made them."
            )
        ece, accuracy = _along_grid(rows, inputs, layer)
        allowed = np.where(accuracy > KEPT * float(rows.correct.double().mean()), ece, np.inf)
        place = int(np.argmax(allowed <= allowed.min() + EQUAL))  # the first of equals: the smallest c
        objective = Objective(
            "ECE (15 bins)", top_label_ece(rows.facts.confidence, rows.correct), float(allowed[place])
        )
        state = {"clip": torch.tensor(GRID[place]), "weight": layer}
        notes = () if np.isfinite(allowed[place]) else (f"No clip keeps {KEPT:.0%} of the accuracy.",)
        return cls.made(rows, state, {"accuracy": float(accuracy[place])}, objective=objective, notes=notes)

    @property
    def n_parameters(self) -> int:
        """One: where features are cut."""
        return 1

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Subtract what the last layer makes of the part that is clipped off."""
        f = of_call(features, self.weight.shape[1], logits)
        clip = self.clip.to(logits.dtype)
        cut = torch.minimum(torch.maximum(f, -clip), clip) - f
        return logits + cut @ self.weight.to(logits.dtype).T

    def words(self) -> str:
        """Say where features are cut."""
        did = "would not help" if self.fitted.identity else f"accuracy there {self.settings['accuracy']:.4f}"
        return f"features cut at {float(self.clip):.4g} ({did})"


def _layer(weight: Any, bias: Any, k: int, d: int) -> tuple[Tensor, Tensor]:
    """Return the (k, d) weights and k biases in float64; one row is the logit of class 1 of two."""
    w = checks.tensor(weight, "weight").cpu().double()
    b = torch.zeros(len(w)).double() if bias is None else checks.tensor(bias, "bias").cpu().double()
    if k == 2 and w.shape == (1, d) and b.shape == (1,):
        w, b = torch.cat([torch.zeros_like(w), w]), torch.cat([torch.zeros_like(b), b])
    if w.shape != (k, d):
        raise ValueError(f"weight must have shape ({k}, {d}), that of the last layer; got {tuple(w.shape)}.")
    if b.shape != (k,):
        raise ValueError(f"bias must have shape ({k},), that of the last layer; got {tuple(b.shape)}.")
    return w, b


def _along_grid(rows: FitData, features: Tensor, weight: Tensor) -> tuple[Vector, Vector]:
    """Return ECE and accuracy at each value of the grid."""
    size = max(1, min(CHUNK // 4 // rows.k, 8 * CHUNK // features.shape[1]))
    whole = (rows.logits, rows.labels, features)
    parts = [_chunk(z, y, f, weight) for z, y, f in zip(*(column.split(size) for column in whole), strict=True)]
    gaps, right = (np.sum(column, axis=0) for column in zip(*parts, strict=True))
    return np.abs(gaps).sum(1) / rows.n, right / rows.n


def _chunk(z: Tensor, labels: Tensor, features: Tensor, weight: Tensor) -> tuple[Vector, Vector]:
    """Return, at each value of the grid, confidence - correctness summed in bins, and the number of right rows.

    Between two values of the grid logits move along a straight line, but for the features that stop being cut there.
    """
    f, columns = features.numpy(), np.ascontiguousarray(weight.numpy().T)
    entries = _Entries(f)
    logits = z - features @ weight.T  # as if all features were cut at 0
    slope, space = features.sign() @ weight.T, torch.empty_like(logits)
    gaps, right, last = np.zeros((len(GRID), BINS)), np.zeros(len(GRID)), 0.0
    place = 0
    for place, clip in enumerate(GRID):
        logits.add_(slope, alpha=clip - last)
        entries.leave(place, clip, logits.numpy(), slope.numpy(), columns)
        top = logits.amax(1, keepdim=True)
        correct = (logits.gather(1, labels[:, None]) >= top).squeeze(1).numpy()
        sure = torch.sub(logits, top, out=space).exp_().sum(1).reciprocal_().numpy()
        bin_of, _ = assign(sure, bins=BINS)
        gaps[place], right[place], last = np.bincount(bin_of, sure - correct, BINS), correct.sum(), clip
        if place >= entries.last:
            break
    gaps[place + 1 :], right[place + 1 :] = gaps[place], right[place]
    return gaps, right


class _Entries:
    """The entries of the features, sorted by the clip from which on they are no longer clipped."""

    def __init__(self, features: Array) -> None:
        level = np.searchsorted(GRID, np.abs(features).ravel()).astype(np.int16)  # the first clip that cuts it no more
        self._features = features
        self._order = np.argsort(level, kind="stable")
        self._starts = np.searchsorted(level[self._order], np.arange(len(GRID) + 1))
        self.last = int(level.max(initial=0))

    def leave(self, place: int, clip: float, logits: Array, slope: Array, columns: Array) -> None:
        """Remove the entries that stop being clipped here from the slope, and undo their overshoot."""
        leaving = self._order[self._starts[place] : self._starts[place + 1]]
        row, column = np.divmod(leaving, self._features.shape[1])
        value = self._features[row, column]
        leaving, row, column, value = (part[value != 0] for part in (leaving, row, column, value))
        if len(row) == 0:
            return
        touched, first = np.unique(row, return_index=True)
        ends = np.append(first, len(row))
        shape = (len(touched), self._features.shape[1])
        sign = np.sign(value)
        slope[touched] -= csr_array((sign, column, ends), shape=shape) @ columns
        logits[touched] -= csr_array((sign * (clip - np.abs(value)), column, ends), shape=shape) @ columns
