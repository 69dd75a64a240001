"""Trust score: nearest-neighbour distance to the predicted class against that to the nearest other class."""

import math
import time
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.io.sealed import Contents
from calibrant.predictions.fit_data import FitData, of_call, of_fit
from calibrant.predictions.types import widened
from calibrant.records import count
from calibrant.registry import TRUST
from calibrant.trust._machinery.neighbours import by_class
from calibrant.trust.predictor import TrustFit, TrustPredictor

Filtering = Literal["none", "density"]
LARGEST = 1e150  # the square of a larger feature leaves float64
EPSILON = 1e-12  # what the reference adds to the distance it divides by


@TRUST.register(reads="rows")
class TrustScore(TrustPredictor):
    r"""Trust score: the distance to the nearest other class against the distance to the predicted class.

    .. math:: \frac{d_{\text{other}}}{d_{\text{other}} + d_{\text{predicted}}} = \frac{r}{1 + r}, \qquad
        r = \frac{d_{\text{other}}}{d_{\text{predicted}}}

    with :math:`d_{\text{predicted}}` the Euclidean distance to the nearest training row of the predicted class and
    :math:`d_{\text{other}}` the smallest of the distances to the other classes. The score of the paper is the ratio r,
    which `ratio` returns; the confidence ranks rows as r does, lies in [0, 1], and is 1/2 where both are equally far,
    also where both distances are 0. Fit it on the *training* rows of the classifier: their labels say where each
    class lies. Logits only say which class is predicted, of tied classes the first.

    ``neighbour=1`` is for new rows. Rows it was fitted on have themselves at distance 0: ``neighbour=2`` takes the
    second nearest row of every class, for them only. With ``filtering="density"`` each class loses at most the share
    ``alpha`` of its rows, those with the largest distance to their ``k_density``-th nearest row of the class, the row
    itself being the first; rows that tie with the last one kept stay, so no class is left empty. A class of fewer than
    ``neighbour`` rows is infinitely far: it is never the nearest other class, and where it is predicted, confidence and
    ratio are 0. Distances are exact and float64; features are kept in their own type, half precision as float32.

    It knows the geometry of the features and nothing of how sure the classifier was. In many dimensions distances are
    nearly equal and scores gather around 1/2, features on different scales are not made equal, all training rows are
    kept, and a mislabelled row spoils its surroundings (which filtering is for). It is no probability of being right.

    Reference: Jiang, Kim, Guan & Gupta, NeurIPS 2018.

    Example:
        >>> features, labels = torch.tensor([[0.0, 0.0], [0.0, 1.0], [4.0, 0.0]]), torch.tensor([0, 0, 1])
        >>> trust = TrustScore.fit(torch.eye(2)[labels] * 3, labels, features)
        >>> trust(torch.tensor([[3.0, 0.0], [0.0, 3.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
        tensor([0.7500, 0.2500], dtype=torch.float64)
        >>> trust.ratio(torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
        tensor([3.0000], dtype=torch.float64)
    """

    features: Tensor
    offsets: Tensor

    @classmethod
    def fit(
        cls,
        logits: Any,
        labels: Any = None,
        features: Any = None,
        *,
        filtering: Filtering = "none",
        alpha: float = 0.0,
        k_density: int = 10,
        neighbour: int = 1,
    ) -> "TrustScore":
        """Keep training features by class; logits are those that the classifier gave to the same rows."""
        _check_options(filtering, alpha, k_density, neighbour)
        rows = FitData.read(logits, labels, features)
        given = widened(rows.predictions.features)
        kind = given.dtype if given.is_floating_point() else torch.float32
        every = _small(of_fit(rows)).to(given.device, kind)
        order = rows.labels.argsort(stable=True).to(every.device)
        parts = list(every[order].split(rows.labels.bincount(minlength=rows.k).tolist()))
        if filtering == "density":
            parts = [_densest(part, alpha, k_density) for part in parts]
        sizes = torch.tensor([len(part) for part in parts])
        offsets = torch.cat([torch.zeros(1).long(), sizes.cumsum(0)]).to(every.device)
        state = {"features": torch.cat(parts), "offsets": offsets}
        few = (sizes < neighbour).nonzero().squeeze(1).tolist()
        if rows.k - len(few) < 2:
            raise ValueError(
                f"labels must hold at least 2 classes of {neighbour} or more rows; "
                f"got {rows.k - len(few)}. Fit on the training rows of the classifier."
            )
        fit = TrustFit(
            rows.n,
            rows.k,
            int((~rows.correct).sum()),
            (rows.predictions.fingerprint,),
            time.perf_counter() - rows.began,
            notes=_notes(few, neighbour),
            d=every.shape[1],
        )
        options = {"filtering": filtering, "alpha": alpha, "k_density": k_density, "neighbour": neighbour}
        return cls(state, {**options, "features": True}, fit)

    def feature_width(self) -> int:
        """Return how many features each stored row has."""
        return self.features.shape[1]

    @classmethod
    def rebuilt(cls, contents: Contents) -> "TrustScore":
        """Build a saved predictor, if its offsets divide its rows by class."""
        features, offsets, k = contents.state["features"], contents.state["offsets"], contents.fit.k
        if features.ndim != 2 or not features.numel():
            raise ValueError(f"features must have rows and columns; got {tuple(features.shape)}")
        if offsets.dtype != torch.int64 or offsets.shape != (k + 1,):
            raise ValueError(f"offsets must be {k + 1} whole numbers; got {offsets.dtype} of {tuple(offsets.shape)}")
        if int(offsets[0]) != 0 or int(offsets[-1]) != len(features) or bool((offsets.diff() < 0).any()):
            raise ValueError(f"offsets must rise from 0 to {len(features)}, the number of rows")
        return super().rebuilt(contents)

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Return the confidence of each row, 1/2 where the predicted class is as far as the nearest other."""
        other, predicted = self._distances(logits, features)
        share = other / (other + predicted)  # 0 where the predicted class is infinitely far
        return share.masked_fill(other == predicted, 0.5)

    def ratio(self, logits: Tensor, features: Tensor) -> Tensor:
        r"""Return the score of the paper, :math:`d_{\text{other}} / (d_{\text{predicted}} + 10^{-12})`."""
        other, predicted = self._distances(self._read(logits, features), features)
        return other / (predicted + EPSILON)

    def _distances(self, logits: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the distances to the nearest other class and to the predicted one."""
        places = torch.arange(logits.shape[1], device=logits.device)
        answers = torch.where(logits == logits.amax(1, keepdim=True), places, len(places)).amin(
            1
        )  # the first of equals
        found = by_class(
            self._queries(features),
            self.features,
            self.offsets.tolist(),
            neighbour=self.settings["neighbour"],
            judged=answers,
        )
        own = answers[:, None]
        return found.scatter(1, own, torch.inf).amin(1), found.gather(1, own).squeeze(1)

    def words(self) -> str:
        """Say how many rows are kept."""
        nearest = (
            "nearest row" if self.settings["neighbour"] == 1 else f"nearest row number {self.settings['neighbour']}"
        )
        return f"{nearest} of {count(len(self.features))} by class, {self.features.shape[1]} features"

    def _queries(self, features: Tensor | None) -> Tensor:
        kind = torch.promote_types(torch.float32, self.features.dtype)
        seen = of_call(features, self.feature_width(), torch.empty(0, dtype=kind))
        if seen.device != self.features.device:
            raise ValueError(f"features must be on {self.features.device}, where the logits are; got {seen.device}.")
        return _small(seen).detach()


def _check_options(filtering: str, alpha: float, k_density: int, neighbour: int) -> None:
    if filtering == "none" and alpha != 0:
        raise ValueError(f"alpha must be 0 without filtering; got {alpha}. Pass filtering='density'.")
    if filtering == "density" and not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, the share of rows to drop; got {alpha}.")
    for name, value in (("k_density", k_density), ("neighbour", neighbour)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}.")


def _small(features: Tensor) -> Tensor:
    largest = max(float(end.abs()) for end in features.aminmax()) if len(features) else 0.0
    if largest > LARGEST:
        raise ValueError(f"features must not exceed {LARGEST:g} in size; got {largest:.3g}. Standardise them.")
    return features


def _densest(rows: Tensor, alpha: float, k: int) -> Tensor:
    """Return the rows of a class without the share of least density, in their order."""
    n = len(rows)
    if n == 0:
        return rows
    radius = by_class(rows, rows, [0, n], neighbour=min(k, n)).squeeze(1)
    return rows[radius <= radius.sort().values[n - math.floor(alpha * n + 1e-9) - 1]]


def _notes(few: list[int], neighbour: int) -> tuple[str, ...]:
    if not few:
        return ()
    which = ", ".join(map(str, few[:5])) + (", ..." if len(few) > 5 else "")
    rows = "no rows" if neighbour == 1 else f"fewer than {neighbour} rows"
    return (f"classes with {rows}: {which}. An answer that names one has confidence 0.",)
