"""Choice of a calibrator by cross-fitted log loss and the one-standard-error rule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.calibrators.calibrator import Calibrator
from calibrant.calibrators.cross_fit import Trial, cross_fit_all, fit, records, simplest, verdict, why
from calibrant.predictions import scalars
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.predictions import Predictions
from calibrant.records import Record, count
from calibrant.registry import CALIBRATORS

FEWEST = 50  # rows below which a fold says nothing
FOLDS = 5
ANY = range(2, 1_000_000)
TWO, MORE = range(2, 3), range(3, 1_000_000)


@dataclass(frozen=True)
class Candidate:
    """A method tried by default: for which numbers of classes, and from how many rows, in total and per class."""

    name: str
    classes: range = ANY
    rows: int = 0
    per_class: int = 0

    def needs(self, k: int) -> int:
        """Return the rows from which it is tried."""
        return max(self.rows, self.per_class * k)


# On fewer rows each loses more on new rows than it gains, and a comparison by as few rows cannot tell.
CANDIDATES = (
    Candidate("identity"),
    Candidate("temperature"),
    Candidate("ensemble_temperature", rows=500),
    Candidate("smart_proper", rows=500),
    Candidate("platt", TWO, rows=100),
    Candidate("beta", TWO, rows=100),
    Candidate("isotonic", TWO, rows=1000),
    Candidate("venn_abers", TWO, rows=1000),
    Candidate("structured_vector", MORE, per_class=20),
    Candidate("structured_matrix", range(3, 201), per_class=50),
    Candidate("vector", MORE, per_class=100),
    Candidate("dirichlet", range(3, 11), rows=1000),
)


@dataclass(frozen=True)
class Choice:
    """A calibrator fitted on all rows and the reason for it; ``print`` shows the comparison, ``records`` hold it."""

    calibrator: Calibrator
    name: str
    reason: str
    records: tuple[Record, ...]
    understood: str

    def __str__(self) -> str:
        from calibrant.report.comparison import text

        tables = [text(self.records, self.name)] if self.records else []
        return "\n\n".join([self.reason, self.understood, *tables, repr(self.calibrator)])


def plan(n: int, k: int, methods: Sequence[str] | None = None) -> tuple[list[str], list[str]]:
    """Return the methods to compare, identity first, and notes on those left out because rows are too few."""
    if isinstance(methods, str):
        raise TypeError(f"methods must be a list of names; got {methods!r}.")
    if methods is not None:
        named = [CALIBRATORS.entry(name).name for name in methods]
        return list(dict.fromkeys(["identity", *named])), []
    suited = {c.name: c.needs(k) for c in CANDIDATES if k in c.classes}
    sizes = sorted({size for size in suited.values() if size > n})
    late = [
        f"{', '.join(m for m, size in suited.items() if size == most)} not tried below {count(most)}" for most in sizes
    ]
    return [name for name, size in suited.items() if size <= n], late


def autocalibrate(
    logits: Any,
    labels: Any = None,
    *,
    methods: Sequence[str] | None = None,
    folds: int = FOLDS,
    groups: Any = None,
    features: Any = None,
    seed: int = 0,
    on_step: Callable[[str], None] | None = None,
) -> Choice:
    r"""Choose a calibrator for held-out rows by cross-fitted log loss, preferring the simple, and say why.

    Every method is fitted ``folds`` times, each time on all folds but one, and calibrates the fold it has not seen.
    The pooled rows give its log loss, Brier score, debiased calibration error with noise floor, and change of
    accuracy. With b the method of least log loss and :math:`\ell_i` the log loss of row i, the choice is the simplest
    method m with

    .. math:: \frac1n \sum_i d_i \le \mathrm{se}\Bigl(\frac1n \sum_i d_i\Bigr), \qquad d_i = \ell_{mi} - \ell_{bi}

    Simplest means fewest fitted parameters, then least log loss. Identity has none, so it is chosen unless something
    beats it by more than one standard error. The chosen method is then fitted on all rows. Where every row is right,
    any increasing map lowers the log loss without end, so the choice is identity.

    `Predictions` may come in place of logits and labels. ``methods`` are names of `calibrant.registry.CALIBRATORS`;
    identity is always among them. By default temperature, and from 500 rows ensemble_temperature and smart_proper; for
    two classes platt and beta from 100 rows, isotonic and venn_abers from 1 000; for more classes structured_vector
    from 20 rows a class, structured_matrix from 50 (up to 200 classes), vector from 100, and dirichlet from 1 000 rows
    (up to 10 classes). On fewer rows these lose more than they gain, and so few rows cannot tell. Never by default:
    methods that need features (pass them as ``features``); methods fitted to a calibration error, whose minimum lies
    anywhere on few rows; histograms and other steps, which lose the ranking that the log loss rewards; matrix scaling
    without a penalty, which structured_matrix improves on.

    ``groups`` (a patient, a document, a day) keep rows that belong together in one fold and cluster the standard
    errors; the interval and floor of the calibration error still take rows as independent. ``on_step`` is told the
    method before each fit. A method that fails is reported with its reason. Works from 50 rows.

    The standard error is that of the rows given the fits: a little small for methods whose fits vary from fold to
    fold.

    Reference: Breiman, Friedman, Olshen & Stone, 1984 (one-standard-error rule); Stone, JRSS B 1974
    (cross-validation).

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(300, 3, generator=g)
        >>> labels = torch.multinomial(logits.softmax(1), 1, generator=g).squeeze(1)
        >>> best = autocalibrate(4 * logits, labels, methods=["temperature"])  # four times too sure
        >>> best.name, round(best.calibrator.temperature.item())
        ('temperature', 4)
    """
    predictions = _read(logits, labels, features, groups, seed)
    n, k = predictions.logits.shape
    if n < FEWEST:
        raise ValueError(
            f"logits must have at least {FEWEST} rows for a cross-fitted choice; got {n}. Fit Temperature on them."
        )
    names, left_out = plan(n, k, methods)
    if bool(predictions.correct.all()):
        names, left_out = ["identity"], ["every row is right, which cannot say how sure is too sure"]
    told = on_step or (lambda name: None)
    trials = cross_fit_all(names, predictions, folds, seed, told)
    trials, calibrator = _settled(trials, predictions, seed, told)
    reason = "; ".join([f"n = {count(n)}: {calibrator.name}", *why(trials, predictions.groups), *left_out])
    return _choice(calibrator, reason, trials, predictions, seed)


def calibrate(
    logits: Any,
    labels: Any = None,
    *,
    method: str,
    folds: int = FOLDS,
    groups: Any = None,
    features: Any = None,
    seed: int = 0,
    on_step: Callable[[str], None] | None = None,
) -> Choice:
    """Fit the method that is named, and compare it with identity on rows its fits have not seen.

    The options are those of `autocalibrate`. Below 50 rows there are no numbers, only the fit.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(300, 3, generator=g)
        >>> labels = torch.multinomial(logits.softmax(1), 1, generator=g).squeeze(1)
        >>> calibrate(4 * logits, labels, method="temperature").reason
        'n = 300: temperature, as asked; helps: the cross-fitted log loss changes by -0.627 ± 0.107.'
    """
    predictions = _read(logits, labels, features, groups, seed)
    n, name = len(predictions), CALIBRATORS.entry(method).name
    opening = f"n = {count(n)}: {name}, as asked"
    told = on_step or (lambda name: None)
    if n < FEWEST:
        reason, trials = f"too few rows to judge it (fewer than {FEWEST})", []
    else:
        trials = cross_fit_all([name], predictions, folds, seed, told)
        reason = verdict(trials, predictions.groups)
    told(name)
    return _choice(fit(name, predictions, seed), f"{opening}; {reason}", trials, predictions, seed)


def _read(logits: Any, labels: Any, features: Any, groups: Any, seed: int) -> Predictions:
    scalars.seed(seed)
    return FitData.read(logits, labels, features).predictions.grouped(groups)


def _choice(calibrator: Calibrator, reason: str, trials: list[Trial], predictions: Predictions, seed: int) -> Choice:
    numbers = tuple(records(trials, predictions.groups, seed)) if trials else ()
    return Choice(calibrator, calibrator.name, f"{reason}.", numbers, predictions.understood)


def _settled(
    trials: list[Trial], predictions: Predictions, seed: int, told: Callable[[str], None]
) -> tuple[list[Trial], Calibrator]:
    """Fit the chosen method on all rows; if that raises, mark it as failed and choose among the others."""
    name = simplest(trials, predictions.groups).name
    told(name)
    try:
        return trials, fit(name, predictions, seed)
    except Exception as error:  # identity never fails, so this comes to an end
        failed = Trial(name, {}, failure=f"on all rows: {error}")
        return _settled([failed if t.name == name else t for t in trials], predictions, seed, told)
