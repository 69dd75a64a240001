"""Fine-tuned oracle: a second network that predicts, from the inputs, whether a frozen classifier is right."""

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.losses.functional import check_batch, check_values
from calibrant.metrics.delong import paired_auroc
from calibrant.metrics.scores import log_odds
from calibrant.predictions.collect import answered, batches, called, device_of, evaluating, logits_of
from calibrant.predictions.fit_data import columns
from calibrant.predictions.types import Confidence
from calibrant.registry import TRUST
from calibrant.trust._machinery.heads import Kind, learnable, started, z_of
from calibrant.trust._machinery.sampling import seeded
from calibrant.trust.learned import SURE, Learned, Loss
from calibrant.trust.predictor import Onlooker

Optimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
RATE = 1e-4  # of AdamW, if no optimiser is given
_STANDARD = ("mean", "std", "low", "high")


@TRUST.register(reads="inputs")
class Oracle(Onlooker):
    r"""Fine-tuned oracle: a backbone that reads the classifier's inputs, and a head, trained by any trust loss.

    .. math:: \sigma(z), \qquad z = e^{s} \cdot \text{log odds of the classifier} + w \cdot \text{backbone}(x) + b

    Without an anchor the first term is left out; a signed distance is divided by the length of all weights, and s stays
    0. The backbone starts as a copy of the classifier's body, or of one that is given, which may be of another
    architecture. It is trained in train mode; the classifier only ever runs in eval mode without gradients, and none of
    its numbers change.

    ``anchor=True``, the default, differs from the papers: z starts as the classifier's own confidence, which wants
    held-out rows and others for ``validation``. The epoch of best AUROC on those is kept if it exceeds the start by
    1.64 standard errors, else the start. Without an anchor the best of all is kept, or the last one if there are no
    validation rows. The papers' scheme is ``anchor=False`` on the classifier's training rows; Luo et al. take one epoch
    with ``optimiser=partial(torch.optim.SGD, lr=1e-5, momentum=0.05)``.

    Costs a training run, and a second network wherever it is used. On training rows almost every answer is right, so
    there is little to learn errors from.

    Reference: Corbière et al., NeurIPS 2019; Luo et al., NeurIPS 2021.

    Example:
        >>> from calibrant.training.models.build import make
        >>> classifier = make("mlp", 3, channels=1, side=8)
        >>> loader = [(torch.randn(32, 1, 8, 8), torch.arange(32) % 3) for _ in range(4)]
        >>> oracle = Oracle.fit(classifier, loader[1:], validation=loader[:1], loss="steep_slope", epochs=1)
        >>> oracle.confidence(torch.randn(5, 1, 8, 8)).shape
        torch.Size([5])
    """

    def __init__(
        self, classifier: nn.Module, backbone: nn.Module, head: Mapping[str, Tensor], settings: Mapping[str, Any]
    ) -> None:
        super().__init__(classifier)
        self.backbone = backbone
        moving = learnable(head, settings["head"])
        self.head = nn.ParameterDict({name: nn.Parameter(head[name], requires_grad=name in moving) for name in head})
        self.settings = dict(settings)
        self.history: list[dict[str, float]] = []

    @property
    def distrust_below(self) -> float:
        """1/2, or 1/k for a true class probability, as of the loss's own predictor."""
        return float(self.settings["distrust_below"])

    @classmethod
    def fit(  # noqa: PLR0913  a protocol has this many parts
        cls,
        classifier: nn.Module,
        loader: Iterable[Any],
        *,
        loss: str = "bce",
        options: Mapping[str, Any] | None = None,
        backbone: nn.Module | None = None,
        head: Kind = "linear",
        anchor: bool = True,
        epochs: int = 5,
        optimiser: Optimiser | None = None,
        validation: Iterable[Any] | None = None,
        resize: int = 0,
        seed: int = 0,
        on_epoch: Callable[[dict[str, float]], None] | None = None,
    ) -> "Oracle":
        """Train an oracle on the batches of a loader, which must come again for each epoch.

        ``loss`` is the name of a learned predictor, ``options`` those of its loss; ``backbone`` maps inputs to (n, d)
        features; ``optimiser`` makes one for the parameters, by default AdamW at 1e-4; ``resize`` is the side to which
        images are interpolated for the backbone, if it is not the classifier's.
        """
        method = _method(loss)
        _check(loader, validation, head, epochs, resize, anchor=anchor)
        here = device_of(classifier)
        given = dict(options or {})
        with seeded(classifier, seed), evaluating(classifier, here), torch.inference_mode(mode=False):
            body = _copied(classifier, backbone).to(here)
            with evaluating(body, here), torch.no_grad():
                inputs, labels = next(batches(loader, here))
                k = columns(answered(classifier, inputs, labels)).shape[1]
                seen = called(body, _resized(inputs, resize))
            if seen.ndim != 2:
                raise ValueError(f"backbone must give features of shape (n, d); got {tuple(seen.shape)}.")
            # features as they come, as in the papers: not standardised
            net = started(seen.float(), head, anchor=anchor, seed=seed)
            settings = {"loss": loss, "options": given, "head": head, "anchor": anchor, "resize": resize}
            settings |= {"epochs": epochs, "seed": seed, "distrust_below": 1 / k if method.estimates_truth else 0.5}
            made = cls(classifier, body, {name: net[name] for name in net if name not in _STANDARD}, settings)
            function = _loss(method, given, lambda: made._counted(loader))
            steps = (optimiser or partial(torch.optim.AdamW, lr=RATE))(
                [p for p in made.parameters() if p.requires_grad]
            )
            with torch.enable_grad():
                made._train(loader, function, steps, validation, on_epoch or (lambda told: None))
        return made.eval()

    def _train(
        self,
        loader: Iterable[Any],
        loss: Loss,
        steps: torch.optim.Optimizer,
        validation: Iterable[Any] | None,
        on_epoch: Callable[[dict[str, float]], None],
    ) -> None:
        kept = None if validation is None else _BestEpoch(self, validation, anchored=self.settings["anchor"])
        for epoch in range(self.settings["epochs"] + 1):
            told = {"epoch": float(epoch), "loss": self._epoch(loader, loss, steps) if epoch else math.nan}
            if kept is not None:
                told["auroc"] = kept.update()
            self.history.append(told)
            on_epoch(told)
        if kept is not None:
            self.load_state_dict(kept.state)

    def _epoch(self, loader: Iterable[Any], loss: Loss, steps: torch.optim.Optimizer) -> float:
        self.train()
        total, rows, here = 0.0, 0, device_of(self.classifier)
        for inputs, labels in batches(loader, here):
            logits, truth = self._answered(inputs, labels)
            value = loss(self._z(inputs, logits), truth).mean()
            steps.zero_grad()
            value.backward()
            steps.step()
            total, rows = total + float(value.detach()) * len(labels), rows + len(labels)
        return total / rows

    def _answered(self, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the classifier's logits and what the oracle should say."""
        with torch.no_grad():
            logits = columns(answered(self.classifier, inputs, labels))
        labels = labels.to(logits.device)
        check_batch(logits, labels)
        check_values(logits, labels)
        if TRUST[self.settings["loss"]].estimates_truth:
            return logits, logits.float().softmax(1).gather(1, labels[:, None].long()).squeeze(1)
        return logits, (logits.argmax(1) == labels).float()

    def _counted(self, loader: Iterable[Any]) -> tuple[int, int]:
        """Count the rows that the classifier gets wrong and right."""
        right = [self._answered(*batch)[1] for batch in batches(loader, device_of(self.classifier))]
        hits = int(torch.cat(right).sum())
        return sum(map(len, right)) - hits, hits

    def _z(self, inputs: Any, logits: Tensor) -> Tensor:
        u = called(self.backbone, _resized(inputs, self.settings["resize"]))
        with torch.autocast(u.device.type, enabled=False):
            return z_of(log_odds(logits.float()), u.float(), dict(self.head.items()), self.settings["head"])

    def confidence(self, inputs: Any) -> Confidence:
        """Return the confidence of each row, with the backbone in eval mode."""
        here = device_of(self.classifier)
        with evaluating(self.classifier, here), evaluating(self.backbone, here), torch.no_grad():
            logits = columns(logits_of(self.classifier, inputs))
            return self._z(inputs, logits).double().sigmoid()


def _method(loss: str) -> type[Learned]:
    learned = [name for name in TRUST if issubclass(TRUST[name], Learned)]
    if loss not in learned:
        raise ValueError(f"loss must be that of a learned predictor, one of {', '.join(learned)}; got {loss!r}.")
    found: type[Learned] = TRUST[loss]
    return found


def _loss(method: type[Learned], options: dict[str, Any], counted: Callable[[], tuple[int, int]]) -> Loss:
    """Return the loss with its options, and with counts of rows where it needs them."""
    known = [p.name for p in inspect.signature(method.loss).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise ValueError(f"options must be among {', '.join(known) or 'none'} for this loss; got {name!r}.")
    if "counts" in known and "counts" not in options:
        options["counts"] = counted()
    loss = partial(method.loss, **options)
    loss(torch.zeros(2), torch.tensor([0.0, 1.0]))  # a wrong option is said before the work
    return loss


def _check(
    loader: Iterable[Any], validation: Iterable[Any] | None, head: str, epochs: int, resize: int, *, anchor: bool
) -> None:
    if head == "mlp":
        raise ValueError("head must be linear or signed_distance: the backbone is the network.")
    if epochs < 0 or resize < 0:
        raise ValueError(f"epochs and resize must not be negative; got {epochs} and {resize}.")
    if anchor and validation is None:
        raise ValueError(
            "validation must be given with anchor=True: without other rows nothing keeps the oracle from ranking worse "
            "than it began. Hold some back, or pass anchor=False for the papers' scheme."
        )
    for name, given in (("loader", loader), ("validation", validation)):
        if isinstance(given, Iterator):
            raise ValueError(f"{name} must give its batches anew for each epoch, as a list or a DataLoader does.")


def _copied(classifier: nn.Module, given: nn.Module | None) -> nn.Module:
    """Return a copy: training it must not reach a tensor of the classifier, nor of the caller."""
    body = getattr(classifier, "body", None) if given is None else given
    if not isinstance(body, nn.Module):
        raise ValueError(
            f"backbone must be given: {type(classifier).__name__} has no body to copy. Pass a module that maps inputs "
            "to (n, d) features."
        )
    return copy.deepcopy(body).requires_grad_()


def _resized(inputs: Any, side: int) -> Any:
    """Return images interpolated to a side; as they are if it is 0."""
    if not side:
        return inputs
    if not isinstance(inputs, Tensor) or inputs.ndim != 4:
        raise ValueError("resize must be left out: inputs are not images of shape (n, c, h, w).")
    return F.interpolate(inputs, size=(side, side), mode="bilinear", align_corners=False)


class _BestEpoch:
    """The best weights so far by AUROC on validation rows; an anchored oracle must beat its start significantly."""

    def __init__(self, oracle: Onlooker, validation: Iterable[Any], *, anchored: bool) -> None:
        self.oracle, self.validation, self.anchored = oracle, validation, anchored
        self.state: dict[str, Tensor] = {}
        self.start: Confidence | None = None
        self.best = -math.inf

    def update(self) -> float:
        """Evaluate the validation rows, keep the weights if they are the best, and return the AUROC."""
        judged = self.oracle.judge(self.validation)
        right = judged.correct.numpy()
        if right.all() or not right.any():
            raise ValueError("validation must hold answers that are right and answers that are wrong; got one kind.")
        first = judged.confidence if self.start is None else self.start
        found, start, spread = paired_auroc(judged.confidence.numpy(), first.numpy(), right)
        surely = not self.anchored or found - start > SURE * spread
        if self.start is None or (surely and found > self.best):
            self.best, self.state = found, copy.deepcopy(self.oracle.state_dict())
        self.start = first
        return found
