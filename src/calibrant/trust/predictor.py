"""Base classes of trust predictors: a confidence for each answer of a frozen classifier, from rows or from inputs."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from calibrant.calibrators.calibrator import PROBED, check_fit, check_width
from calibrant.io.sealed import TRUST_PREDICTOR, Contents, write
from calibrant.predictions.collect import answered, batches, device_of, evaluating
from calibrant.predictions.fit_data import checked, columns, of_arrays
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Confidence
from calibrant.records import count, versions
from calibrant.registry import TRUST


@dataclass(frozen=True)
class TrustFit:
    """How a fit went: on ``n`` rows of ``k`` classes, ``wrong`` of them wrong.

    ``auroc`` is that of right against wrong for max-softmax and for the predictor, on rows that the predictor had not
    seen (cross-fitted; the best of several candidates, so slightly optimistic), and ``spread`` the standard error of
    their difference; NaN where it was not measured. ``rows`` are fingerprints of the rows, ``notes`` warnings.
    ``d`` is the number of features of a row, 0 where none are needed.
    """

    n: int
    k: int
    wrong: int
    rows: tuple[str, ...]
    seconds: float = 0.0
    auroc: tuple[float, float] = (float("nan"), float("nan"))
    spread: float = float("nan")
    notes: tuple[str, ...] = ()
    versions: str = field(default_factory=versions)
    d: int = 0


Made = TypeVar("Made", bound="TrustPredictor")


class TrustPredictor(nn.Module, ABC):
    """A confidence read off a classifier's logits and features: ``trust(logits, features) -> (n,)`` in [0, 1].

    Made by ``fit(logits, labels, features)`` on labelled rows, so an unfitted one cannot exist. Its tensors are
    buffers, its ``settings`` plain JSON, and ``fitted`` records how the fit went. Only outputs of the classifier are
    read. Logits of shape (n,) or (n, 1) are the score of class 1 of two. Add one by subclassing: ``fit`` ends with
    ``cls(state, settings, fitted)``, and ``map`` computes the confidence.
    """

    story: ClassVar[type] = TrustFit
    infinite: ClassVar[tuple[str, ...]] = ()  # tensors that may hold infinity
    estimates_truth = False  # the probability of the true class, in place of the chance of being right

    def __init_subclass__(cls) -> None:
        """Let every predictor's ``fit`` check its options by their annotations."""
        super().__init_subclass__()
        check_fit(cls)

    def __init__(self, state: Mapping[str, Tensor], settings: Mapping[str, Any], fitted: TrustFit) -> None:
        super().__init__()
        for name, value in state.items():
            self.register_buffer(name, value)
        self.settings = dict(settings)
        self.fitted = fitted

    @property
    def name(self) -> str:
        """The name in the registry."""
        return TRUST.name_of(type(self))

    @property
    def needs_features(self) -> bool:
        """Whether features must be given as well."""
        return bool(self.settings.get("features", False))

    @property
    def distrust_below(self) -> float:
        """The confidence below which an answer counts as distrusted: 1/2, and 1/k for a true class probability."""
        return 1 / self.fitted.k if self.estimates_truth else 0.5

    @abstractmethod
    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Return the confidence of each row of (n, k) logits, in [0, 1]."""

    def forward(self, logits: Any, features: Any = None) -> Any:
        """Return the confidence of each row, float64 in [0, 1]; numpy in, numpy out."""
        if not isinstance(logits, Tensor):
            return of_arrays(self, logits, features)
        with torch.autocast(logits.device.type, enabled=False):
            return self.map(self._read(logits, features), features).double()

    def _read(self, logits: Tensor, features: Tensor | None) -> Tensor:
        return checked(self, self.name, self.fitted.k, logits, features, needs=self.needs_features)

    def judge(self, predictions: Predictions) -> Predictions:
        """Return the same answers with this confidence: what metrics, audits and policies read.

        They remember the rows that the predictor was fitted on: an audit of those warns that it is optimistic.
        """
        features = predictions.features if self.needs_features else None
        with torch.no_grad():
            confidence: Confidence = self(predictions.logits, features)
        return predictions.judged(confidence, self.fitted.rows, self.distrust_below)

    def words(self) -> str:
        """Say in a few words what was fitted."""
        return "nothing was fitted"

    def __repr__(self) -> str:
        fit = self.fitted
        told = f"{type(self).__name__}: {self.words()}; {count(fit.n)} rows x {fit.k} classes, {count(fit.wrong)} wrong"
        return "\n".join([told, *(f"note: {note}" for note in fit.notes)])

    def feature_width(self) -> int:
        """Return how many features a row must have; 0 where none are needed."""
        return self.fitted.d

    def save(self, path: str | Path) -> None:
        """Write it to a .safetensors file, all of it or nothing; `calibrant.load` reads it. No pickle is involved.

        A trust score keeps every row it was fitted on, and so does its file. A predictor that reads the classifier's
        inputs is made of whole networks and cannot be saved so.

        Example:
            >>> import calibrant, tempfile
            >>> from calibrant.trust.mcp import Mcp
            >>> trust = Mcp.fit(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     trust.save(f"{folder}/trust.safetensors")
            ...     calibrant.load(f"{folder}/trust.safetensors")
            Mcp: nothing was fitted; 2 rows x 2 classes, 1 wrong
        """
        write(Contents(self.name, self.state_dict(), self.settings, self.fitted), TRUST_PREDICTOR, Path(path))

    @classmethod
    def rebuilt(cls: "type[Made]", contents: Contents) -> Made:
        """Build a saved predictor and call it once, so that a file that does not fit the method fails at load."""
        made = cls(contents.state, contents.settings, contents.fit)
        check_width(made.feature_width(), needs=made.settings.get("features", False))
        repr(made)  # reads settings that a call may not
        if made.fitted.k <= PROBED:
            logits = torch.linspace(-1.0, 1.0, made.fitted.k)[None]
            features = torch.zeros(1, made.feature_width()) if made.needs_features else None
            with torch.no_grad():
                confidence = made(logits, features)
            if not bool(((confidence >= 0) & (confidence <= 1)).all()):
                raise ValueError("its confidences do not lie in [0, 1]")
        return made


class Onlooker(nn.Module, ABC):
    """A confidence read off the classifier's inputs: ``confidence(inputs) -> (n,)`` in [0, 1].

    ``classifier`` is the model whose answers are judged. It is held outside of the module's own parts, so that neither
    ``.train()`` nor an optimiser can reach it, and runs in eval mode.
    """

    story: ClassVar[type] = TrustFit
    infinite: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def rebuilt(cls, contents: Contents) -> None:
        """Refuse: only predictors that read rows are saved."""
        raise ValueError(f"method must read rows; {contents.method} looks at the classifier's inputs")

    def __init_subclass__(cls) -> None:
        """Let every predictor's ``fit`` check its options by their annotations."""
        super().__init_subclass__()
        check_fit(cls)

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self._judged = (classifier,)

    @property
    def distrust_below(self) -> float:
        """The confidence below which an answer counts as distrusted."""
        return 0.5

    @property
    def classifier(self) -> nn.Module:
        """The model whose answers are judged."""
        return self._judged[0]

    @property
    def name(self) -> str:
        """The name in the registry."""
        return TRUST.name_of(type(self))

    @abstractmethod
    def confidence(self, inputs: Any) -> Confidence:
        """Return the confidence of each row of a batch of inputs."""

    def judge(self, loader: Iterable[Any]) -> Predictions:
        """Return the classifier's answers to the rows of a loader, right or wrong, with this confidence."""
        here = device_of(self.classifier)
        sure, said, true = [], [], []
        with evaluating(self.classifier, here), torch.no_grad():
            for inputs, labels in batches(loader, here):
                said.append(columns(answered(self.classifier, inputs, labels)).cpu())
                true.append(labels)
                sure.append(self.confidence(inputs).detach().to("cpu", torch.float64))
        logits = torch.cat(said)
        answers = Predictions(logits=logits, labels=torch.cat(true), classes=range(logits.shape[1]))
        judged = Predictions(confidence=torch.cat(sure), correct=answers.correct)
        judged.distrust_below = self.distrust_below
        return judged
