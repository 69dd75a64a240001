"""A network of its own that watches a frozen classifier: the papers' way, with any loss, anchored by default."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.collecting import batches, called, device_of, evaluating, logits_of
from calibrant.metrics.ranking import failure_auroc
from calibrant.nouns import Confidence
from calibrant.registry import TRUST
from calibrant.trust.heads import Kind, check_kind, started, z_of
from calibrant.trust.learned import Learned
from calibrant.trust.own_scores import log_odds
from calibrant.trust.predictor import Onlooker

Optimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
RATE = 1e-4  # of AdamW, if no optimiser is given
_STANDARD = ("mean", "std", "low", "high")


@TRUST.register(reads="inputs")
class Oracle(Onlooker):
    r"""Fine-tuned oracle: a backbone that reads the classifier's inputs, and a head, trained by any trust loss.

    .. math:: \sigma(z), \qquad z = e^{s} \cdot \text{log odds of the classifier} + w \cdot \text{backbone}(x) + b

    Without an anchor the first term is left out; a signed distance is divided by :math:`\lVert w \rVert`. The backbone
    starts as a copy of the classifier's body, or is given, and may be of another architecture. It is trained in train
    mode; the classifier only ever runs in eval mode without gradients, and none of its numbers change.

    ``anchor=True``, the default, differs from the papers: z starts as the classifier's own confidence, which wants
    held-out rows. With ``validation`` rows the epoch of best AUROC on them is kept, the start included, so that an
    anchored oracle ranks them no worse than max-softmax. The papers' scheme is ``anchor=False`` on the classifier's
    training rows; Luo et al. take one epoch with ``optimiser=partial(torch.optim.SGD, lr=1e-5, momentum=0.05)``.

    Costs a training run, and a second network wherever it is used. On training rows almost every answer is right, so
    there is little to learn errors from.

    Reference: Corbière et al., NeurIPS 2019; Luo et al., NeurIPS 2021.

    Example:
        >>> from calibrant.models.making import make
        >>> classifier = make("mlp", 3, channels=1, side=8)
        >>> loader = [(torch.randn(32, 1, 8, 8), torch.arange(32) % 3) for _ in range(4)]
        >>> oracle = Oracle.fit(classifier, loader, loss="steep_slope", epochs=1)
        >>> oracle.confidence(torch.randn(5, 1, 8, 8)).shape
        torch.Size([5])
    """

    def __init__(
        self, classifier: nn.Module, backbone: nn.Module, head: Mapping[str, Tensor], settings: Mapping[str, Any]
    ) -> None:
        super().__init__(classifier)
        self.backbone = backbone
        self.head = nn.ParameterDict({name: nn.Parameter(value) for name, value in head.items()})
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
        check_kind(head)
        method = _method(loss)
        here = device_of(classifier)
        body = _backbone(classifier, backbone).to(here)
        inputs, _ = next(batches(loader, here))
        with evaluating(classifier, here), evaluating(body, here), torch.no_grad():
            k = logits_of(classifier, inputs).shape[1]
            seen = called(body, _resized(inputs, resize))
        if seen.ndim != 2:
            raise ValueError(f"backbone must give features of shape (n, d); got {tuple(seen.shape)}.")
        if head == "mlp":
            raise ValueError("head must be linear or signed_distance: the backbone is the network.")
        # features as they come, as in the papers: not standardised
        net = {n: v for n, v in started(seen.float(), head, anchor=anchor, seed=seed).items() if n not in _STANDARD}
        settings = {"loss": loss, "options": dict(options or {}), "head": head, "anchor": anchor, "resize": resize}
        settings |= {"epochs": epochs, "seed": seed, "distrust_below": 1 / k if method.estimates_truth else 0.5}
        made = cls(classifier, body, net, settings)
        with torch.random.fork_rng([here] if here.type == "cuda" else []), torch.enable_grad():
            torch.manual_seed(seed)
            steps = (optimiser or partial(torch.optim.AdamW, lr=RATE))(made.parameters())
            made._train(loader, method, steps, validation, on_epoch or (lambda told: None))
        return made.eval()

    def _train(
        self,
        loader: Iterable[Any],
        method: type[Learned],
        steps: torch.optim.Optimizer,
        validation: Iterable[Any] | None,
        on_epoch: Callable[[dict[str, float]], None],
    ) -> None:
        loss = partial(method.loss, **self.settings["options"])
        here, best = device_of(self.classifier), (-math.inf, dict[str, Tensor]())
        for epoch in range(self.settings["epochs"] + 1):
            total, rows = 0.0, 0
            if epoch:
                self.train()
                for inputs, labels in batches(loader, here):
                    logits = self._classified(inputs)
                    target = _target(logits, labels.to(here), truth=method.estimates_truth)
                    value = loss(self._z(inputs, logits), target).mean()
                    steps.zero_grad()
                    value.backward()
                    steps.step()
                    total, rows = total + float(value.detach()) * len(labels), rows + len(labels)
            told = {"epoch": float(epoch), "loss": total / rows if rows else math.nan}
            if validation is not None:
                judged = self.judge(validation)
                told["auroc"] = failure_auroc(judged.confidence, judged.correct)
                if not told["auroc"] <= best[0]:  # the start where it is undefined
                    best = told["auroc"], copy.deepcopy(self.state_dict())
            self.history.append(told)
            on_epoch(told)
        if best[1]:
            self.load_state_dict(best[1])

    def _classified(self, inputs: Any) -> Tensor:
        with evaluating(self.classifier, device_of(self.classifier)), torch.no_grad():
            return logits_of(self.classifier, inputs)

    def _z(self, inputs: Any, logits: Tensor) -> Tensor:
        u = called(self.backbone, _resized(inputs, self.settings["resize"]))
        return z_of(log_odds(logits), u.float(), dict(self.head.items()), self.settings["head"])

    def confidence(self, inputs: Any) -> Confidence:
        """Return the confidence of each row, with the backbone in eval mode."""
        logits = self._classified(inputs)
        with evaluating(self.backbone, logits.device), torch.no_grad():
            return self._z(inputs, logits).double().sigmoid()


def _method(loss: str) -> type[Learned]:
    learned = [entry.name for entry in TRUST.entries() if isinstance(entry.method, type)]
    learned = [name for name in learned if issubclass(TRUST[name], Learned)]
    if loss not in learned:
        raise ValueError(f"loss must be that of a learned predictor, one of {', '.join(learned)}; got {loss!r}.")
    found: type[Learned] = TRUST[loss]
    return found


def _backbone(classifier: nn.Module, given: nn.Module | None) -> nn.Module:
    """Return a module of its own: training it must not reach a tensor of the classifier."""
    body = getattr(classifier, "body", None) if given is None else given
    if not isinstance(body, nn.Module):
        raise ValueError(
            f"backbone must be given: {type(classifier).__name__} has no body to copy. Pass a module that maps inputs "
            "to (n, d) features."
        )
    held = {tensor.data_ptr() for tensor in (*classifier.parameters(), *classifier.buffers())}
    shared = any(tensor.data_ptr() in held for tensor in (*body.parameters(), *body.buffers()))
    body = copy.deepcopy(body) if shared else body
    return body.requires_grad_()


def _resized(inputs: Any, side: int) -> Any:
    if not side:
        return inputs
    return F.interpolate(inputs, size=(side, side), mode="bilinear", align_corners=False)


def _target(logits: Tensor, labels: Tensor, *, truth: bool) -> Tensor:
    if truth:
        return logits.float().softmax(1).gather(1, labels[:, None]).squeeze(1)
    return (logits.argmax(1) == labels).float()
