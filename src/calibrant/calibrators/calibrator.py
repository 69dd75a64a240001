"""The base class of calibrators: fitted tensors, a map from logits to logits, and a report of the fit."""

import functools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from calibrant.io.sealed import CALIBRATOR, Contents, write
from calibrant.predictions import fingerprints, scalars
from calibrant.predictions.facts import from_logits
from calibrant.predictions.fit_data import FitData, checked, of_arrays
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.threads import alone
from calibrant.predictions.types import Features
from calibrant.records import count, versions
from calibrant.registry import CALIBRATORS


@dataclass(frozen=True)
class Fit:
    """How a fit went. Losses are in-sample means, hence optimistic.

    ``before`` and ``after`` are the value of the method's own ``objective``; ``log_loss`` is that of the rows before
    and after. ``rows`` are fingerprints of the rows, as they came and as they left. ``identity`` says that the fit did
    not help and that the calibrator therefore leaves logits as they are; ``notes`` say why, and whatever else is odd.
    ``d`` is the number of features of a row, 0 where none were read.
    """

    n: int
    k: int
    objective: str
    before: float
    after: float
    log_loss: tuple[float, float]
    rows: tuple[str, ...]
    seconds: float
    converged: bool = True
    identity: bool = False
    notes: tuple[str, ...] = ()
    versions: str = field(default_factory=versions)
    d: int = 0


@dataclass(frozen=True)
class Objective:
    """What a method minimises, before and after its fit."""

    name: str
    before: float
    after: float


Fitted = TypeVar("Fitted", bound="Calibrator")
FEW = 1_000_000  # numbers up to which a fit is faster on one thread (benchmarks/speed/threads.py)
PROBED = 1_000_000  # classes up to which what was loaded is tried on a row


class Calibrator(nn.Module, ABC):
    """A fitted map ``cal(logits) -> logits``; made by ``fit``, so an unfitted one cannot exist.

    Its numbers are float64 buffers on the device of the rows, so ``state_dict``, ``.to`` and export come for free; its
    ``settings`` are plain JSON; ``fitted`` says how the fit went. Logits of shape (n,) or (n, 1) are the score of class
    1 of two, and come back in that shape; half precision comes back as float32. Add a method by subclassing: ``fit``
    ends with ``cls.made(rows, state, settings)``, and ``map`` says what it does to (n, k) logits.
    """

    story: ClassVar[type] = Fit
    infinite: ClassVar[tuple[str, ...]] = ()  # tensors that may hold infinity
    feature_tensor: ClassVar[str] = ""  # whose last dimension is that of the features, in files that do not say it

    def __init_subclass__(cls) -> None:
        """Let every method's ``fit`` check its options by their annotations."""
        super().__init_subclass__()
        check_fit(cls)

    def __init__(self, state: Mapping[str, Tensor], settings: Mapping[str, Any], fitted: Fit) -> None:
        super().__init__()
        for name, value in state.items():
            self.register_buffer(name, value)
        self.settings = dict(settings)
        self.fitted = fitted
        facts = CALIBRATORS.facts_of(type(self))
        self.keeps_argmax: bool = facts["keeps_argmax"]
        # a method that can do with or without features says in its settings what this fit did
        self.needs_features: bool = settings.get("features", facts.get("needs_features", False))

    @classmethod
    def made(
        cls: "type[Fitted]",
        rows: FitData,
        state: Mapping[str, Tensor],
        settings: Mapping[str, Any] | None = None,
        *,
        objective: Objective | None = None,
        log_loss: float | None = None,
        converged: bool = True,
        notes: tuple[str, ...] = (),
    ) -> Fitted:
        """Build the calibrator; if its objective did not improve on the rows, it is the identity, with a note.

        ``log_loss`` is that after the fit, where the fit knows it and ``map`` is the same increasing function of every
        logit; otherwise the rows are calibrated once for it.
        """
        before = float(rows.predictions.nll.mean())
        prints: tuple[str, ...] = (rows.predictions.fingerprint,)  # as they came; as they left is added below
        d = rows.features.shape[1] if rows.predictions.has_features else 0
        fit = Fit(rows.n, rows.k, "log loss", before, before, (before, before), prints, 0.0, d=d)
        numbers = {name: value.to(rows.given.device, torch.float64) for name, value in state.items()}
        made = cls(numbers, settings or {}, fit)
        if log_loss is None:
            features = rows.predictions.features if made.needs_features else None
            with torch.no_grad():
                left = rows.predictions.calibrated(made(rows.predictions.logits, features), ())
            log_loss, hashed = float(left.nll.mean()), left.hashed
        else:
            hashed = fingerprints.of_columns(made.map(fingerprints.columns(rows.given), None))
        prints = tuple(dict.fromkeys((*prints, fingerprints.text(hashed))))
        goal = objective or Objective("log loss", before, log_loss)
        identity = not goal.after <= goal.before
        if identity:
            reason = f"{goal.name} on the rows it was fitted on did not fall ({goal.before:.6g} -> {goal.after:.6g})"
            notes = (*notes, f"{reason}, so logits are left as they are.")
            log_loss, prints, goal = before, prints[:1], replace(goal, after=goal.before)
        made.fitted = replace(
            fit,
            objective=goal.name,
            before=goal.before,
            after=goal.after,
            log_loss=(before, log_loss),
            rows=prints,
            seconds=time.perf_counter() - rows.began,
            converged=converged,
            identity=identity,
            notes=notes,
        )
        return made

    @property
    def name(self) -> str:
        """The name in the registry."""
        return CALIBRATORS.name_of(type(self))

    @property
    def n_parameters(self) -> int:
        """How many numbers were fitted; where tables are padded to one width, the settings know."""
        return int(self.settings.get("parameters", sum(value.numel() for value in self.buffers())))

    @abstractmethod
    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Return the calibrated (n, k) logits."""

    def forward(self, logits: Any, features: Any = None) -> Any:
        """Calibrate (n, k) logits, or (n,) and (n, 1) where there are two classes; numpy in, numpy out."""
        if not isinstance(logits, Tensor):
            return of_arrays(self, logits, features)
        z = self._read(logits, features)
        out = z
        if not self.fitted.identity:
            most = torch.finfo(z.dtype).max / 4  # a row near the end of its type must not leave it
            out = self.map(z, features).clamp(-most, most)
            out = argmax_kept(z, out) if self.keeps_argmax else out
        return out if logits.shape == out.shape else (out[:, 1] - out[:, 0]).reshape(logits.shape)

    def calibrate(self, predictions: Predictions) -> Predictions:
        """Return calibrated predictions: same labels, classes, groups and weights, marked with the rows fitted on."""
        features: Features | None = predictions.features if self.needs_features else None
        with torch.no_grad():
            logits = self(predictions.logits, features)
        return predictions.calibrated(logits, self.fitted.rows)

    def _read(self, logits: Tensor, features: Tensor | None) -> Tensor:
        return checked(self, self.name, self.fitted.k, logits, features, needs=self.needs_features)

    def __repr__(self) -> str:
        fit = self.fitted
        words = "logits left as they are" if fit.identity else self.words()  # what was fitted is not what is done
        told = f"{type(self).__name__}: {words}; fitted on {count(fit.n)} rows x {fit.k} classes, "
        told += f"log loss there {fit.log_loss[0]:.4f} -> {fit.log_loss[1]:.4f}"
        return "\n".join([told, *(f"note: {note}" for note in fit.notes)])

    def words(self) -> str:
        """Say in a few words what was fitted."""
        return f"{count(self.n_parameters)} numbers"

    def probe(self, n: int) -> tuple[Tensor, ...]:
        """Return n reproducible random rows to call it with: small logits first, then large."""
        source = torch.Generator().manual_seed(0)
        logits = torch.randn(n, self.fitted.k, generator=source) * torch.logspace(-1, 2, n)[:, None]
        if not self.needs_features:
            return (logits,)
        return logits, torch.randn(n, self.feature_width(), generator=source)

    def feature_width(self) -> int:
        """Return how many features a row has; 0 where the method reads none."""
        if not self.needs_features or self.fitted.d or not self.feature_tensor:
            return self.fitted.d
        return int(getattr(self, self.feature_tensor).shape[-1])

    def save(self, path: str | Path) -> None:
        """Write it atomically to a .safetensors file, without pickle; `calibrant.load` reads it.

        Example:
            >>> import calibrant, tempfile
            >>> from calibrant.calibrators.temperature import Temperature
            >>> cal = Temperature.fit(torch.tensor([[4.0, 0.0]]).repeat(4, 1), torch.tensor([0, 0, 0, 1]))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     cal.save(f"{folder}/cal.safetensors")
            ...     calibrant.load(f"{folder}/cal.safetensors").temperature == cal.temperature
            tensor(True)
        """
        write(Contents(self.name, self.state_dict(), self.settings, self.fitted), CALIBRATOR, Path(path))

    @classmethod
    def rebuilt(cls: "type[Fitted]", contents: Contents) -> Fitted:
        """Build a saved calibrator and call it on a few rows; a file that does not suit the method is refused."""
        made = cls(contents.state, contents.settings, contents.fit)
        check_width(made.feature_width(), needs=made.needs_features)
        repr(made)  # reads settings that a call may not
        if made.fitted.k <= PROBED:
            with torch.no_grad():
                out = made(*made.probe(max(1, min(8, PROBED // (10 * made.fitted.k)))))
            if not bool(out.isfinite().all()):
                raise ValueError("its numbers are not finite")
        return made

    def to_onnx(self, path: str | Path) -> None:
        """Write the calibrator as an ONNX graph from logits to logits, checked against this module; needs onnx."""
        from calibrant.calibrators.export import to_onnx  # the exporters of torch are slow to import

        to_onnx(self, path)


def check_fit(method: type) -> None:
    """Replace the ``fit`` that a class defines by one that checks its options and fits few rows on one thread.

    A fit is many operations on small tensors: on two threads it can take fifty times as long.
    """
    if "fit" not in vars(method):
        return
    fit = scalars.checked(vars(method)["fit"].__func__, f"{method.__name__}.fit")

    @functools.wraps(fit)
    def on_one_thread(*args: Any, **given: Any) -> Any:
        logits = args[1] if len(args) > 1 else given.get("logits")
        sizes = [_size(value) for value in (*args[1:], *given.values())]
        few = _size(logits) > 0 and sum(sizes) <= FEW
        return alone(lambda: fit(*args, **given)) if few else fit(*args, **given)

    setattr(method, "fit", classmethod(on_one_thread))  # noqa: B010  mypy knows no other way


def _size(given: Any) -> float:
    """Return how many numbers an argument of a fit holds; infinitely many where they are not in main memory."""
    if isinstance(given, Predictions):
        return _size(given.rows.scores) + (_size(given.features) if given.has_features else 0.0)
    if isinstance(given, Tensor):
        return float(given.numel()) if given.device.type == "cpu" else math.inf
    shape = getattr(given, "shape", None)  # of an array or a table
    return float(math.prod(shape)) if isinstance(shape, tuple) and all(isinstance(s, int) for s in shape) else 0.0


def check_width(width: int, *, needs: Any) -> None:
    """Refuse a file whose claims about features make no sense, before anything of that size is made."""
    if type(needs) is not bool:
        raise TypeError(f"features must be true or false; got {needs!r:.100}")
    if needs != (width > 0):
        raise ValueError(f"features must be {str(width > 0).lower()} with {width} of them")
    if width > PROBED:
        raise ValueError(f"features must be at most {PROBED} columns; got {width}")


def log_loss(logits: Tensor, labels: Tensor) -> float:
    """Return the mean log loss of logits, in float64."""
    value = float(from_logits(logits, labels).nll.mean())
    return value if math.isfinite(value) else math.inf


def argmax_kept(logits: Tensor, calibrated: Tensor) -> Tensor:
    """Return the calibrated logits with the argmax of the logits.

    An increasing map keeps the order of two numbers or, by rounding, makes them equal; then the first of them would
    win. In such a row, and only there, the rightful largest is lifted by one rounding unit above the rest.
    """
    top = logits.argmax(1, keepdim=True)
    moved = calibrated.argmax(1, keepdim=True) != top
    best = calibrated.amax(1, keepdim=True)
    unit = torch.finfo(calibrated.dtype)
    lifted = best + (best.abs() * unit.eps).clamp(min=unit.tiny)
    mine = torch.arange(logits.shape[1], device=logits.device) == top
    return torch.where(moved & mine, lifted, calibrated)
