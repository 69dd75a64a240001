"""Every metric on random views and options: equal to its slow oracle, whatever the kind of array, or refused."""

import inspect
import math
import random
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import metric_oracles
import numpy as np
from doors import plausible, softmax
from hostile import JUNK, SIZES, Given, close, labels, logits, numpy_of, probs

from calibrant.registry import METRICS

SLOW = {"ece_kde": 12, "smooth_ce": 20, "sm_ece": 20}  # rows, for oracles that take long
GRID = {"sm_ece": 3e-3}  # coarse cells against the exact integral
UNSTABLE = {"calibration_slope", "calibration_intercept", "separability_kl", "separability_bhattacharyya"}


def case(chance: random.Random, folder: Path) -> None:
    """Call a metric, and compare it with its oracle where the input is good."""
    name = chance.choice(sorted(METRICS))
    n = min(chance.choice(SIZES), SLOW.get(name, 60))
    k = 2 if name == "binary_ece" else chance.choice([2, 3, 6])
    given = views(chance, name, n, k)
    options, right = chosen(chance, name)
    if chance.random() < 0.2 and "weights" in inspect.signature(METRICS[name]).parameters:
        whole = numpy_of(chance).integers(1, 4, n).astype(np.float64)
        given.add(chance, "weights", whole)
    try:
        found = METRICS[name](**given.arguments, **options)
    except (ValueError, TypeError) as error:
        good = given.good and right and not unweighted(given, error)
        assert not good, f"{name}({options}): good input refused: {error}"
        raise
    assert isinstance(found, float), f"{name} returned {type(found)}"
    alone = len(given.arguments) == 1 or name == "ood_auroc"  # any number of rows will do
    assert alone or not given.hopeless, f"{name}: bad input accepted"
    if not (given.good and right) or on_an_edge(given.truth, options):
        return
    truth = dict(given.truth)
    w = truth.pop("weights", None)
    if w is not None:
        truth = {
            view: np.repeat(values, w.astype(int), axis=0) for view, values in truth.items() if view != "ood_confidence"
        }
        truth |= {view: given.truth[view] for view in given.truth if view == "ood_confidence"}
    try:
        expected = getattr(metric_oracles, name)(**truth, **options)
    except (ValueError, ZeroDivisionError):
        return  # the oracle gives up: no rows are left, or a distribution has no width
    tolerance = GRID.get(name, 1e-4 if name in UNSTABLE else 1e-7)
    if "probs" in truth and np.abs(truth["probs"].sum(1) - 1).max() > 1e-9:
        tolerance = 1e-3  # half precision: rows sum to 1 only about, and a divergence below 0 counts as 0
    if name in UNSTABLE and (math.isnan(found) or math.isnan(expected) or abs(expected) > 1e3):
        return  # separated or nearly constant rows: where the fit ceases to exist depends on rounding
    assert close(found, float(expected), tolerance), f"{name}({options}) = {found}, and {expected} by the oracle"


def on_an_edge(truth: dict[str, np.ndarray], options: dict[str, Any]) -> bool:
    """Whether a value is so near the edge of a bin that rounding decides, which the oracle does without mercy."""
    bins = options.get("bins", 15)
    values = np.concatenate([truth[view].reshape(-1) for view in ("confidence", "probs") if view in truth] or [[0.0]])
    near = np.abs(values * bins - np.round(values * bins))
    return bool(((near > 0) & (near < 1e-4)).any())


def views(chance: random.Random, name: str, n: int, k: int) -> Given:
    """The positional views of a metric, of the same rows."""
    wanted, given = METRICS.entry(name).views, Given()
    z = np.clip(logits(chance, n, k), -1e4, 1e4)
    p = probs(chance, n, k)
    sure = numpy_of(chance).random(n) if chance.random() < 0.5 else np.round(softmax(z).max(1), 2)
    y = labels(chance, p if "probs" in wanted else z)
    known: dict[str, Any] = {"logits": z, "probs": p, "labels": y, "confidence": sure, "correct": y == z.argmax(1)}
    known["ood_confidence"] = np.round(numpy_of(chance).random(chance.choice(SIZES)), 1)
    for view in wanted:
        given.add(chance, view, known[view], exact=view in ("labels", "correct"))
    if "probs" in given.truth:  # half precision may not sum to 1 any more
        given.good &= bool((np.abs(given.truth["probs"].sum(1) - 1) < 5e-3).all())
    if "logits" in wanted and "logits" in given.truth:
        given.good &= plausible("logits", given.truth["logits"])
    return given


def chosen(chance: random.Random, name: str) -> tuple[dict[str, Any], bool]:
    """Options of a metric by their annotations, and whether all are right."""
    options: dict[str, Any] = {}
    right = True
    for p in inspect.signature(METRICS[name]).parameters.values():
        if p.kind is not p.KEYWORD_ONLY or p.name in ("weights", "losses") or chance.random() < 0.6:
            continue
        if chance.random() < 0.05:
            options[p.name], right = chance.choice([*JUNK, -1, 0, 1e300, "widht"]), False
        elif get_origin(p.annotation) is Literal:
            options[p.name] = chance.choice(get_args(p.annotation))
        elif p.annotation is bool:
            options[p.name] = chance.random() < 0.5
        elif p.annotation is int:
            options[p.name] = chance.choice([1, 2] if p.name == "power" else [1, 2, 7, 15, 40])
        else:
            options[p.name] = chance.choice(
                {"sigma": [0.05, 0.3], "bandwidth": [0.02, 0.3]}.get(p.name, [0.25, 0.5, 0.9])
            )
    convention, scheme = str(options.get("convention")), options.get("scheme", "width")
    mass_only = {"torrvision", "au"}
    if convention in mass_only | {"guo2017", "torchmetrics", "netcal"} and (convention in mass_only) != (
        scheme == "mass"
    ):
        right = False
    return options, right


def unweighted(given: Given, error: Exception) -> bool:
    """Whether weights were refused because the convention defines none."""
    return "weights" in given.arguments and "weights must be left out" in str(error)
