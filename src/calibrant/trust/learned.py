"""A trust predictor that learned: a head, what it sees of a row, and its confidence."""

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from calibrant.metrics.scores import SORTED, log_odds, own_scores
from calibrant.predictions.fit_data import FitData, of_call, of_fit
from calibrant.trust._machinery.heads import Kind, check_kind, prepared, z_of
from calibrant.trust.learning import Learnt, Loss, Task, anchored, bare
from calibrant.trust.predictor import TrustFit, TrustPredictor

Made = TypeVar("Made", bound="Learned")
WIDEST = 15.0  # a spread of log odds beyond which their distances would tie at 0 and 1: they are brought to it
FLAT = 1e-6  # a spread of confidences below which they count as one


class Learned(TrustPredictor):
    r"""Confidence :math:`\sigma(z)` of a head on the classifier's own scores and its features.

    Fit it on held-out rows: on the rows that the classifier was trained on almost every answer is right. A subclass
    names its ``loss``, a function of (z, target): its ``fit`` ends with ``cls.learned(rows, loss, ...)``.
    """

    loss: Callable[..., Tensor]

    @classmethod
    def learned(  # what a fit may choose
        cls: "type[Made]",
        rows: FitData,
        loss: Loss,
        options: Mapping[str, Any],
        *,
        head: Kind,
        anchor: bool,
        seed: int,
        target: Tensor | None = None,
        scale_ridge: float = 1e-3,
    ) -> Made:
        """Learn a head by a loss of (z, target); the target is 1 for right rows and 0 for wrong ones if none is given.

        Features are used if the rows have them. Without an anchor there must be some. ``scale_ridge`` holds the scale
        of the anchor at 1; a loss that would have it endless needs more.
        """
        check_kind(head)
        loss(torch.zeros(2), torch.tensor([0.0, 1.0]))  # a wrong option is said before the work
        wrong = int((~rows.correct).sum())
        if not 0 < wrong < rows.n:
            said = "right" if wrong == 0 else "wrong"
            raise ValueError(
                f"labels must leave some answers right and some wrong; all {rows.n} are {said}, and nothing can be "
                "learned from that. Fit on rows that the classifier was not trained on."
            )
        with torch.inference_mode(mode=False), torch.autocast("cpu", enabled=False):
            odds, columns, own = _seen(rows, anchor=anchor)
            unit = min(1.0, WIDEST / max(float(odds.std(correction=0)), 1e-300))
            odds = odds * unit
            truth = rows.correct.double() if target is None else target
            # ConfidNet's network is trained where the features are, in float32; the rest in float64 on the CPU
            place = rows.predictions.features.device if rows.predictions.has_features and head == "mlp" else "cpu"
            kind = torch.float32 if head == "mlp" else torch.float64
            odds, columns, truth = (x.to(place, kind, copy=True) for x in (odds, columns, truth))
            task = Task(odds, columns, truth, rows.correct.to(place), loss, head, scale_ridge, seed)
            found = anchored(task, own) if anchor else bare(task)
            notes = (*found.notes, *_flat(task, found))
        with_features = not anchor or found.chosen.width > own
        settings = {**options, "head": head, "anchor": anchor, "seed": seed, "unit": unit}
        settings |= {"features": with_features, "sees": found.chosen.says, "width": found.chosen.width}
        fit = TrustFit(
            rows.n,
            rows.k,
            wrong,
            (rows.predictions.fingerprint,),
            time.perf_counter() - rows.began,
            found.auroc,
            found.spread,
            notes,
        )
        return cls({name: value.cpu() for name, value in found.net.items()}, settings, fit)

    def feature_width(self) -> int:
        """Return how many features the head sees beside the classifier's own scores."""
        width, own = self.settings["width"], min(SORTED, self.fitted.k) + 2 if self.settings["anchor"] else 0
        if width != self.get_buffer("mean").numel():  # a file may claim anything
            raise ValueError(f"width must be that of its tensors; got {width!r:.100}")
        return width - own if self.needs_features else 0

    def z(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the head's number of each row of (n, k) logits, trusted above 0."""
        net, wide = dict(self.named_buffers()), logits.double()  # features may have an offset that float32 cannot hold
        odds = self.settings["unit"] * log_odds(wide)
        columns = own_scores(wide) if self.settings["anchor"] else wide[:, :0]
        if self.needs_features:
            columns = torch.cat([columns, of_call(features, self.feature_width(), wide)], 1)
        u = prepared(columns[:, : self.settings["width"]], net).to(net["shift"].dtype)
        return z_of(odds, u, net, self.settings["head"])

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Return the confidence of each row."""
        return self.z(logits, features).double().sigmoid()

    def words(self) -> str:
        """Say what the head sees and how it ranks."""
        base, own = self.fitted.auroc
        told = f"{self.settings['head'].replace('_', ' ')} head on {self.settings['sees']}"
        if own == own:  # NaN: not measured
            told += f"; AUROC on unseen rows {own:.4f}, max-softmax {base:.4f}"
        return told


def _flat(task: Task, found: Learnt) -> tuple[str, ...]:
    """Say it where the confidences of the rows of the fit hardly differ, as where a bounded loss sees no slope."""
    u = prepared(task.columns[:, : found.chosen.width], found.net)
    sure = z_of(task.odds, u, found.net, task.kind).double().sigmoid().sort().values
    n = len(sure)
    if float(sure[n - 1 - n // 20] - sure[n // 20]) > FLAT:
        return ()
    return (f"nine in ten confidences lie within {FLAT:g} of each other: nothing was learned that could be used.",)


def _seen(rows: FitData, *, anchor: bool) -> tuple[Tensor, Tensor, int]:
    """Return log odds, the columns that a head may see, and how many of them are the classifier's own scores."""
    logits = rows.logits
    columns = own_scores(logits) if anchor else logits[:, :0]
    own = columns.shape[1]
    if rows.predictions.has_features:
        columns = torch.cat([columns, of_fit(rows)], 1)
    elif not anchor:
        raise ValueError("features must be given with anchor=False: such a head sees nothing else.")
    return log_odds(logits), columns, own
