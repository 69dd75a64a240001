"""The shape of a loss is what the loss computes, and its figure shows that and nothing else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import matplotlib
import numpy as np
import pytest
import torch
from loss_oracles import usual
from matplotlib.figure import Figure
from numpy import exp, log
from test_losses import LOSS_ROWS, expected, held

from calibrant import Criterion
from calibrant.losses.shapes import POINTS, read_options, shape
from calibrant.records import Curve
from calibrant.registry import ALL, LOSSES
from calibrant.report import methods as sheet
from calibrant.report.figures import QUIET

K = 10
GRID = np.arange(1, POINTS + 1) / (POINTS + 1)


def others(p):
    """What each other class has."""
    return (1 - p) / (K - 1)


def ada_focal(p):
    return np.where(p < 1 / 3, (1 - p) ** 2, np.where(p < 2 / 3, (1 - p) ** 1, (1 + p) ** 0.5)) * -log(p)


def cal_focal(p):
    gamma = np.exp(10 * (GRID - 0.75))  # carries no gradient
    return -((1 - p) ** gamma) * log(p)


def aurc(p):
    entropy = -GRID * log(GRID) - (1 - GRID) * log(others(GRID))
    rank = np.empty(POINTS, int)
    rank[np.argsort(-entropy, kind="stable")] = np.arange(POINTS)
    weight = np.array([sum(1 / j for j in range(POINTS - r, POINTS + 1)) for r in rank])
    return -weight * log(p)


def au(p):
    def surest(p):
        both = np.stack([exp(p), exp(others(p))])
        return both.max(0) / (both[0] + (K - 1) * both[1])

    tau = np.quantile(surest(GRID), 0.8)
    counts = np.histogram(surest(GRID), bins=64, range=(0, 1))[0]
    centres = (np.arange(64) + 0.5) / 64
    at = np.minimum(surest(p), tau)
    share = (counts / (1 + exp(-(at[:, None] - centres) / usual(K)))).sum(1) / POINTS
    return log(1 - share.clip(1 / (POINTS + 1), POINTS / (POINTS + 1))) * log(p)


@dataclass(frozen=True)
class Row:
    name: str
    value: Callable
    options: Mapping = field(default_factory=dict)
    kinks: tuple = ()  # where the loss jumps or bends
    differentiable: bool = True  # by moving the whole grid: no part of the value is held, or depends on other rows


def from_oracle(row):
    """A row of `test_losses` as a row here: its oracle along the grid."""

    def value(p):
        moving = log(p * (K - 1)) - np.log1p(-p)
        logits = np.column_stack([moving, np.zeros((len(p), K - 1))])
        return expected(row, torch.from_numpy(logits), torch.zeros(len(p), dtype=torch.long))

    step = 1e-7
    low, middle, high = value(GRID - step), value(GRID), value(GRID + step)
    bends = np.abs(high - 2 * middle + low) > 1e-3 * (step + np.abs(high - low))
    alone = not held(row) and not LOSSES.entry(row.name).facts.get("joint")
    return Row(row.name, value, row.options, tuple(GRID[bends]), alone)


GAMMAS = [2.0] * 5 + [1.0] * 5 + [-0.5] * 5
# losses that read their batch, hold a weight or begin with a state, in closed form along the grid
CLOSED_FORMS = [
    Row("seca", lambda p: -1.5 * log(p) - 0.5 * log(others(p))),  # the class' mean prediction is 0.5 for the label
    Row("ada_focal", lambda p: -(1 - p) * log(p)),
    Row("ada_focal", ada_focal, {"gammas": GAMMAS}, kinks=(1 / 3, 2 / 3)),
    Row("cal_focal", lambda p: -(1 - p) * log(p)),
    Row("cal_focal", cal_focal, {"case": 1, "rate": 10.0, "accuracy": 0.75}),
    Row("correctness_ranking", lambda p: -log(p)),
    Row("aurc", aurc),
    Row("au", au, kinks=(0.1, 0.8)),
]
ROWS = CLOSED_FORMS + [
    from_oracle(row) for row in LOSS_ROWS if row.name not in {closed.name for closed in CLOSED_FORMS}
]
each_row = pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: "-".join([row.name, *(f"{k}={v}" for k, v in row.options.items() if k != "gammas")])
)


def test_every_loss_has_a_row():
    assert {row.name for row in ROWS} == set(LOSSES)


@each_row
def test_the_curve_is_finite_and_agrees_with_its_oracle(row):
    curve = shape(row.name, row.options)
    away = ~np.any([np.abs(GRID - kink) < 1e-9 for kink in row.kinks] or [GRID < 0], 0)
    assert len(row.kinks) < 4
    assert all(np.isfinite(column).all() for column in curve.columns.values())
    assert curve["p"] == pytest.approx(GRID, rel=1e-15)
    assert curve["loss"][away] == pytest.approx(row.value(GRID)[away], rel=1e-7, abs=1e-12)
    assert curve["weight"] == pytest.approx(curve["loss"] / -log(GRID), rel=1e-12)
    assert curve["normalised_weight"].mean() == pytest.approx(1, rel=1e-12)
    assert np.ptp(curve["normalised_weight"] / curve["weight"]) < 1e-12


@each_row
def test_the_gradient_is_the_slope_of_the_loss(row):
    if not row.differentiable:  # test_losses compares its gradient in the logits
        return
    curve, step = shape(row.name, row.options), 1e-7
    slope = (row.value(GRID + step) - row.value(GRID - step)) / (2 * step)
    away = ~np.any([np.abs(GRID - kink) < 2e-3 for kink in row.kinks] or [GRID < 0], 0)
    assert curve["gradient"][away] == pytest.approx(slope[away], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 3.0, 5.0])
def test_gradients_of_focal_and_inverse_focal_are_their_closed_forms(gamma):
    p = GRID
    focal = gamma * (1 - p) ** (gamma - 1) * log(p) - (1 - p) ** gamma / p
    inverse = -gamma * (1 + p) ** (gamma - 1) * log(p) - (1 + p) ** gamma / p
    assert shape("focal", {"gamma": gamma})["gradient"] == pytest.approx(focal, rel=1e-9)
    assert shape("inverse_focal", {"gamma": gamma})["gradient"] == pytest.approx(inverse, rel=1e-9)


def test_inverse_focal_goes_the_wrong_way_above_its_limit_and_the_curve_says_so():
    fine, wrong = shape("inverse_focal", {"gamma": 3.5}), shape("inverse_focal", {"gamma": 3.7})
    assert (fine["gradient"] < 0).all()
    assert fine.settings["notes"] == ()
    assert 0 < (wrong["gradient"] > 0).sum() < POINTS / 2
    assert GRID[wrong["gradient"].argmax()] == pytest.approx(0.28, abs=0.02)
    assert "above 3.59" in wrong.settings["notes"][0]


def test_cross_entropy_weighs_one_everywhere_and_is_in_every_curve():
    curve = shape("cross_entropy")
    assert curve["weight"].tolist() == curve["normalised_weight"].tolist() == [1.0] * POINTS
    assert curve["gradient"] == pytest.approx(-1 / GRID, rel=1e-12)
    for other in (shape("seca"), shape("brier", k=3)):
        assert other["cross_entropy"] == pytest.approx(-log(GRID), rel=1e-12)
        assert other["cross_entropy_gradient"] == pytest.approx(-1 / GRID, rel=1e-12)


def test_the_number_of_classes_matters_where_the_others_do():
    assert shape("brier", k=2)["loss"] == pytest.approx(2 * (1 - GRID) ** 2, rel=1e-9)
    assert shape("focal", k=2)["loss"] == pytest.approx(shape("focal", k=100)["loss"], rel=1e-9)


def test_the_settings_say_what_was_done():
    plain, joint = shape("focal", {"gamma": 5.0}).settings, shape("seca", k=7).settings
    assert (plain["loss"], plain["k"], plain["batch"]) == ("focal", 10, "")
    assert plain["options"] == {"gamma": 5.0, "detach_weight": False}
    assert "Of 10 classes the label has p_y and the others share the rest evenly" in plain["rows"]
    assert "Of 7 classes" in joint["rows"]
    assert "The batch is the 999 rows of the grid, all of one class" in joint["batch"]
    assert shape("ada_focal").settings["batch"] == "What it keeps between batches is as it begins."
    given = shape("ada_focal", {"gammas": 2.0}).settings
    assert given["batch"] == "What it keeps between batches is as it begins, but for gammas."
    assert shape("correctness_ranking").settings["notes"] == ("correctness_ranking is cross-entropy here.",)


def test_a_weight_without_bound_is_noted_and_only_that():
    curves = {name: shape(name) for name in LOSSES}
    noted = {name for name, curve in curves.items() if any("without bound" in note for note in curve.settings["notes"])}
    assert noted >= {"label_smoothing", "online_label_smoothing", "seca"}
    assert noted == {name for name, curve in curves.items() if curve["loss"][-1] > 0.05}  # not 0 where p_y is 1


def test_nothing_global_is_left_changed():
    with torch.no_grad():
        assert (shape("focal")["gradient"] < 0).all()
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("focal", {"gama": 1.0}), "options of 'focal' must be among gamma, detach_weight; got 'gama'."),
        (("ada_focal", {"rte": 1.0}), r"switch \(or, of its state, inner, gammas\); got 'rte'."),
        (("cross_entropy", {"gamma": 1.0}), "options of 'cross_entropy' must be among none; got 'gamma'."),
        (("ada_focal", {"gammas": [1.0, 2.0]}), r"gammas must be one number, or 15 of them; got \[1.0, 2.0\]."),
        (("focal", {"gamma": float("nan")}), "options of 'focal' must give finite values"),
        (("focal", {}, 1), "k must be the number of classes, at least 2; got 1."),
    ],
)
def test_a_bad_request_gets_one_sentence(arguments, said):
    with pytest.raises(ValueError, match=said):
        shape(*arguments)


def test_options_are_read_by_the_type_of_their_default():
    texts = ["gamma=5", "detach_weight=true", "kappa=0.5", "bins=3", "gammas=1,2,-1", "confidence=msp", "inner=0.5"]
    focal, au, ada = read_options(["focal", "au", "ada_focal"], texts)
    assert focal == {"gamma": 5.0, "detach_weight": True}
    assert au == {"kappa": 0.5, "bins": 3, "confidence": "msp"}
    assert ada == {"bins": 3, "gammas": [1.0, 2.0, -1.0], "inner": 0.5}
    assert isinstance(focal["gamma"], float)
    assert isinstance(au["bins"], int)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gamma", "option must look like gamma=5; got 'gamma'."),
        ("gama=5", "option must be among gamma, detach_weight for focal; detach_mean for seca; got 'gama'."),
        ("gamma=five", "option gamma must be a number; got 'five'."),
        ("detach_weight=1", "option detach_weight must be true or false; got '1'."),
    ],
)
def test_an_option_that_cannot_be_read_gets_one_sentence(text, said):
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        read_options(["focal", "seca"], [text])
    with pytest.raises(ValueError, match="option gamma must be given once"):
        read_options(["focal"], ["gamma=1", "gamma=2"])


def lines(ax):
    return {line.get_label(): line for line in ax.get_lines() if not line.get_label().startswith("_")}


def test_the_figure_has_a_line_for_each_loss_and_a_quiet_one_for_cross_entropy():
    curves = [shape("focal", {"gamma": 5.0}), shape("cross_entropy"), shape("seca")]
    panels = sheet.loss_shape(curves)
    assert len(panels) == 3
    for ax, column in zip(panels, ("loss", "normalised_weight", "gradient"), strict=True):
        found = lines(ax)
        assert list(found) == ["cross_entropy", "focal, gamma 5", "seca"]
        assert found["cross_entropy"].get_color() == QUIET
        assert np.array_equal(found["cross_entropy"].get_ydata(), curves[1][column])
        for label, curve in (("focal, gamma 5", curves[0]), ("seca", curves[2])):
            assert np.array_equal(found[label].get_xdata(), curve["p"])
            assert np.array_equal(found[label].get_ydata(), curve[column])
        low, high = ax.get_ylim()
        assert low <= 0 < high < 20
    figure = panels[0].figure
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["cross_entropy", "focal, gamma 5", "seca"]
    assert "The batch is the 999 rows of the grid" in figure.get_supxlabel()


def test_lines_are_told_apart_without_colour_and_many_fit():
    curves = [shape(name) for name in LOSSES]
    found = lines(sheet.loss_shape(curves)[0])
    assert set(found) == set(LOSSES)
    looks = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in found.values()}
    assert len(looks) == len(LOSSES)
    first = lines(sheet.loss_shape(curves[:4])[0]).values()
    assert len({str(line._unscaled_dash_pattern) for line in first if line.get_color() != QUIET}) == 4


def test_figures_are_drawn_where_they_are_told_and_leave_matplotlib_alone():
    before = dict(matplotlib.rcParams)
    axes = Figure().subplots(1, 3)
    assert sheet.loss_shape([shape("focal")], axes) == tuple(axes)
    for ending in ("svg", "png", "pdf"):
        once, again = (sheet.encoded(sheet.loss_shape([shape("focal")])[0], f".{ending}") for _ in range(2))
        assert once == again
    assert dict(matplotlib.rcParams) == before
    with pytest.raises(ValueError, match="at least one curve"):
        sheet.loss_shape([])


def history(epochs, bins):
    epoch, which = np.divmod(np.arange(epochs * bins), bins)
    columns = {"epoch": epoch + 1, "bin": which, "gamma": 1 + 0.1 * which - epoch, "error": 0.01 * epoch - 0.02 * which}
    return Curve("gammas", columns, epochs)


def test_the_history_of_gammas_is_drawn_from_the_curve_alone():
    curve = history(6, 5)
    axes = sheet.gamma_history(curve)
    assert axes.shape == (2, 3)
    for column, which in enumerate((0, 2, 4)):
        mine = curve["bin"] == which
        for ax, name in zip(axes[:, column], ("error", "gamma"), strict=True):
            drawn, zero = ax.get_lines()
            assert np.array_equal(drawn.get_xdata(), np.arange(1, 7))
            assert np.array_equal(drawn.get_ydata(), curve[name][mine])
            assert list(zero.get_ydata()) == [0, 0]
    assert [ax.get_title() for ax in axes[0]] == ["bin 0, the least sure", "bin 2", "bin 4, the surest"]
    assert sheet.gamma_history(history(3, 1)).shape == (2, 1)
    assert sheet.gamma_history(curve, bins=[1, 3]).shape == (2, 2)
    assert sheet.gamma_history(history(1, 3))[0, 0].get_lines()[0].get_marker() == "o"


def test_the_history_of_a_criterion_can_be_drawn_once_there_is_one():
    criterion = Criterion("ada_focal", {"bins": 4})
    with pytest.raises(ValueError, match=r"at least one epoch; got none\. Criterion\.epoch_end adds one\."):
        sheet.gamma_history(criterion.history)
    logits = 3 * torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    criterion.epoch_end((logits, torch.zeros(200, dtype=torch.long)))
    axes = sheet.gamma_history(criterion.history)
    assert axes[1, 0].get_lines()[0].get_ydata() == pytest.approx([float(criterion.loss.gammas[0])])
    with pytest.raises(ValueError, match="bins must lie in 0 to 3; got 4"):
        sheet.gamma_history(criterion.history, bins=[4])


def test_formulas_lose_their_latex():
    for registry in ALL:
        for entry in registry.entries():
            text = sheet.particulars(entry)["formula"]
            assert text or entry.kind in ("model", "dataset", "corruption"), entry.name
            assert not set(text) & set("\\&"), (entry.name, text)
            for opening, closing in ("()", "[]", "{}"):
                assert text.count(opening) == text.count(closing), (entry.name, text)
    assert sheet.formula(r".. math:: \ln\frac{a_{1}}{b} \in \{0, \tfrac12\}") == "ln(a_1/b) in {0, 1/2}"
    assert sheet.formula(r".. math:: {unbalanced") == "{unbalanced"
