"""The choice of a calibrator: rows judged by fits that have not seen them, the simple preferred, every reason said."""

import math

import numpy as np
import pytest
import torch
from real_data import small

from calibrant.calibrators.autocalibrate import CANDIDATES, autocalibrate, calibrate, plan
from calibrant.calibrators.cross_fit import Trial, cross_fit_all, folds, paired, simplest, verdict, why
from calibrant.calibrators.identity import Identity
from calibrant.calibrators.temperature import Temperature
from calibrant.predictions.predictions import Predictions
from calibrant.registry import CALIBRATORS
from calibrant.report.comparison import text

METRICS = {
    "nll",
    "nll_change",
    "brier",
    "ece_debiased",
    "accuracy",
    "accuracy_change",
    "fit_seconds",
    "parameters",
}


def rows(n, k=4, sharp=1.0, seed=0):
    """Logits that are calibrated when sharp is 1, too sure when it is more."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=g, dtype=torch.float64)
    return sharp * logits, torch.multinomial(logits.softmax(1), 1, generator=g).squeeze(1)


def record(choice, method, metric):
    return next(r for r in choice.records if (r.method, r.metric) == (method, metric))


# Folds and standard errors


def test_classes_are_spread_evenly_over_folds_and_every_row_has_one():
    labels = np.random.default_rng(0).integers(0, 3, 103)
    fold = folds(labels, 5, seed=1)
    assert sorted(np.bincount(fold)) == [20, 20, 21, 21, 21]
    for k in range(3):
        sizes = np.bincount(fold[labels == k], minlength=5)
        assert sizes.max() - sizes.min() <= 1
    assert not np.array_equal(fold, folds(labels, 5, seed=2))
    assert np.array_equal(fold, folds(labels, 5, seed=1))


def test_a_group_is_never_split_and_folds_are_of_like_size():
    groups = np.random.default_rng(0).choice(list("abcdefghijklmnop"), 400)
    fold = folds(np.zeros(400, dtype=int), 5, 0, groups)
    for group in set(groups):
        assert len(set(fold[groups == group])) == 1
    sizes = np.bincount(fold, minlength=5)
    assert sizes.max() - sizes.min() < np.unique(groups, return_counts=True)[1].max()


def slow_clustered_error(d, groups):
    mean = sum(d) / len(d)
    total = 0.0
    names = sorted(set(groups))
    for name in names:
        total += sum(x - mean for x, g in zip(d, groups, strict=True) if g == name) ** 2
    return math.sqrt(total * len(names) / (len(names) - 1)) / len(d)


def test_the_standard_error_is_that_of_the_paired_difference_clustered_by_group():
    rng = np.random.default_rng(0)
    a, b, groups = rng.normal(size=60), rng.normal(size=60), rng.choice(list("abcde"), 60)
    difference = a - b
    assert paired(a, b) == pytest.approx((difference.mean(), difference.std(ddof=1) / math.sqrt(60)), abs=1e-14)
    assert paired(a, b, groups)[1] == pytest.approx(slow_clustered_error(difference, groups), abs=1e-14)
    assert paired(a, b, np.arange(60)) == pytest.approx(paired(a, b), abs=1e-14)
    thrice = [np.repeat(x, 3) for x in (a, b, np.arange(60))]
    assert paired(*thrice) == pytest.approx(paired(a, b), abs=1e-14)


# The rule


def trial(name, losses, parameters):
    top = Predictions(confidence=[0.9] * len(losses), correct=[True] * len(losses))
    return Trial(name, {}, np.array(losses), np.array(losses), top, parameters)


NOISE = np.random.default_rng(0).normal(size=400)
NOISE = (NOISE - NOISE.mean()) / NOISE.std(ddof=1)  # so that one standard error is exactly 0.05


@pytest.mark.parametrize(
    ("simple", "complex_", "chosen"),
    [
        (1.00, 1.20, "identity"),  # nothing is better
        (0.96, 1.00, "identity"),  # better by less than a standard error
        (0.90, 1.00, "simple"),
        (0.90, 0.86, "simple"),  # complex is better still, but not by a standard error
        (0.90, 0.80, "complex"),
        (1.00, 0.90, "complex"),
    ],
)
def test_the_simplest_within_one_standard_error_of_the_best_is_chosen(simple, complex_, chosen):
    base = np.full(400, 1.0)
    trials = [
        trial("identity", base, 0),
        trial("complex", base - 1 + complex_ + NOISE, 100),
        trial("simple", base - 1 + simple - NOISE * 1e-3, 1),
    ]
    if chosen == "identity":  # then the simple one must have noise of its own
        trials[2] = trial("simple", base - 1 + simple + NOISE, 1)
    assert simplest(trials, None).name == chosen


def test_of_equally_simple_methods_the_better_wins_and_failed_ones_are_left_out():
    base = np.ones(400)
    failed = Trial("failed", {}, failure="no")
    trials = [trial("identity", base, 0), failed, trial("a", base - 0.5, 3), trial("b", base - 0.5 - NOISE**2 / 1e3, 3)]
    assert simplest(trials, None).name == "b"


def test_words_say_why():
    base = np.ones(400)
    first, clear, near = trial("identity", base, 0), trial("a", base - 0.5, 1), trial("b", base - 0.51 + NOISE, 9)
    assert why([first], None) == []
    assert why([first, trial("a", base + 1, 1)], None) == ["no method has a lower cross-fitted log loss"]
    assert why([first, clear], None) == ["least cross-fitted log loss, -0.500 ± 0.000 against identity"]
    assert why([first, clear, near], None) == [
        "the simplest within one standard error of the best, b (-0.010 ± 0.050 in cross-fitted log loss)",
        "-0.500 ± 0.000 against identity",
    ]
    close = trial("c", base - 0.01 + NOISE, 1)
    assert why([first, close], None)[0].startswith(
        "nothing is better by more than one standard error, not even c (-0.0"
    )
    assert verdict([first, close], None).startswith("no detectable change: ")
    assert verdict([first, clear], None).startswith("helps: ")
    assert verdict([first, trial("d", base + 1, 1)], None).startswith("hurts: ")


# The whole


def test_every_number_is_that_of_fits_which_have_not_seen_the_row():
    """Against plain loops: the same folds, one temperature each, log loss and Brier score by hand."""
    logits, labels = rows(120, sharp=3.0)
    choice = autocalibrate(logits, labels, methods=["temperature"], seed=7)
    fold = folds(labels.numpy(), 5, 7)
    others = [torch.from_numpy(fold != number) for number in range(5)]
    fitted = [float(Temperature.fit(logits[rest], labels[rest]).temperature) for rest in others]
    loss, square, right = [], [], []
    for i in range(120):
        p = np.exp(logits[i].numpy() / fitted[fold[i]])
        p /= p.sum()
        truth = np.eye(4)[labels[i]]
        loss.append(-math.log(p[labels[i]]))
        square.append(((p - truth) ** 2).sum())
        right.append(p.argmax() == labels[i])
    assert record(choice, "temperature", "nll").value == pytest.approx(np.mean(loss), abs=1e-10)
    assert record(choice, "temperature", "brier").value == pytest.approx(np.mean(square), abs=1e-10)
    assert record(choice, "temperature", "accuracy").value == pytest.approx(np.mean(right))
    before = -logits.log_softmax(1)[torch.arange(120), labels].numpy()
    change = record(choice, "temperature", "nll_change")
    assert change.value == pytest.approx(np.mean(loss - before), abs=1e-10)
    assert (change.high - change.low) / 2 == pytest.approx(np.std(loss - before, ddof=1) / math.sqrt(120), abs=1e-10)


def test_the_chosen_calibrator_is_fitted_on_all_rows():
    logits, labels = rows(300, sharp=3.0)
    choice = autocalibrate(logits, labels, methods=["temperature"])
    assert choice.name == "temperature"
    assert choice.calibrator.fitted.n == 300
    assert torch.equal(choice.calibrator.temperature, Temperature.fit(logits, labels).temperature)
    assert choice.calibrator.temperature == pytest.approx(3.0, rel=0.2)


def test_calibrated_rows_are_mostly_left_as_they_are():
    chosen = []
    for seed in range(10):
        logits, labels = rows(200, seed=seed)
        predictions = Predictions(logits=logits, labels=labels)
        chosen.append(simplest(cross_fit_all(["identity", "temperature"], predictions, 5, 0, len), None).name)
    assert chosen.count("identity") >= 7


def test_every_method_and_metric_has_a_record_and_the_error_its_floor():
    choice = autocalibrate(*rows(80, sharp=3.0), methods=["temperature"], seed=3)
    for method in ("identity", "temperature"):
        assert {r.metric for r in choice.records if r.method == method} == METRICS
    assert {r.n for r in choice.records} == {80}
    assert {r.seed for r in choice.records} == {3}
    assert {r.settings["folds"] for r in choice.records} == {5}
    error = record(choice, "identity", "ece_debiased")
    assert error.settings["norm"] == "l2"
    assert error.settings["bins"] == 8
    assert error.low <= error.value <= error.high
    assert error.floor < error.value
    assert error.p < 0.05


def test_it_prints_the_reason_first_then_a_row_a_method_with_the_chosen_one_marked():
    choice = autocalibrate(*rows(180, k=2, sharp=3.0), methods=["temperature"])
    lines = str(choice).splitlines()
    assert lines[0] == choice.reason
    assert lines[0].startswith("n = 180: temperature; least cross-fitted log loss, -")
    assert lines[2].startswith("180 rows x 2 classes, logits, labels 0-1, accuracy")
    table = [line for line in lines if line.startswith(("  identity ", "* temperature "))]
    assert [line.split()[0] for line in table] == ["identity", "*"]
    assert " ± " in table[1]
    assert lines[-1].startswith("Temperature: T = ")
    assert max(len(line) for line in lines[3:-1]) <= 100


def test_the_table_fits_in_a_hundred_columns_with_the_longest_name():
    choice = autocalibrate(*rows(60), methods=["ensemble_temperature"])
    lines = text(choice.records, "ensemble_temperature").splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[3].startswith("* ensemble_temperature ")
    assert "…" not in lines[3]


def test_the_default_depends_on_rows_and_classes_and_names_only_methods_that_exist():
    assert {c.name for c in CANDIDATES} <= set(CALIBRATORS)
    assert not any(CALIBRATORS.entry(c.name).facts.get("needs_features") for c in CANDIDATES)
    few, left_out = plan(180, 2)
    assert few == ["identity", "temperature", "platt", "beta"]
    assert left_out == [
        "ensemble_temperature, smart_proper not tried below 500",
        "isotonic, venn_abers not tried below 1 000",
    ]
    assert set(plan(1000, 2)[0]) - set(few) == {"ensemble_temperature", "smart_proper", "isotonic", "venn_abers"}
    assert plan(5000, 100)[0][2:] == ["ensemble_temperature", "smart_proper", "structured_vector", "structured_matrix"]
    assert plan(5000, 100)[1] == ["vector not tried below 10 000"]
    assert "structured_matrix" not in plan(1_000_000, 1000)[0]
    assert plan(50, 10)[0] == ["identity", "temperature"]


@pytest.mark.parametrize("k", [2, 5])
def test_the_default_works_from_fifty_rows_and_says_what_it_left_out(k):
    choice = autocalibrate(*rows(50, k=k, sharp=4.0))
    assert choice.name in CALIBRATORS
    assert "not tried below 1 000" in choice.reason
    assert not any(r.metric == "failed" for r in choice.records)
    chosen, identity = (record(choice, name, "nll").value for name in (choice.name, "identity"))
    assert chosen <= identity


def test_fewer_rows_than_fifty_are_refused_in_one_sentence():
    with pytest.raises(
        ValueError, match=r"at least 50 rows for a cross-fitted choice; got 49\. Fit Temperature on them"
    ):
        autocalibrate(*rows(49))


def test_when_every_row_is_right_nothing_is_chosen():
    logits = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    choice = autocalibrate(logits, logits.argmax(1))
    assert choice.name == "identity"
    assert choice.reason == "n = 60: identity; every row is right, which cannot say how sure is too sure."


@pytest.mark.parametrize("case", ["one wrong", "random", "one class", "constant", "huge"])
def test_odd_rows_get_a_choice_and_no_warning(case):
    logits, labels = rows(60)
    if case == "one wrong":
        labels = logits.argmax(1)
        labels[7] = (labels[7] + 1) % 4
    cases = {
        "one wrong": (logits, labels),
        "random": (logits, torch.arange(60) % 4),
        "one class": (logits, torch.ones(60, dtype=torch.int64)),
        "constant": (torch.zeros(60, 4), labels),
        "huge": (2000 * logits, labels),
    }
    choice = autocalibrate(*cases[case], methods=["temperature"])
    assert not any(r.metric == "failed" for r in choice.records)
    assert bool(choice.calibrator(cases[case][0]).isfinite().all())


def test_a_method_that_fails_is_reported_with_its_reason(monkeypatch):
    def fit(cls, logits, labels):
        raise RuntimeError("no such luck.")

    monkeypatch.setattr(Temperature, "fit", classmethod(fit))
    choice = autocalibrate(*rows(60, sharp=3.0), methods=["temperature"])
    assert choice.name == "identity"
    assert record(choice, "temperature", "failed").settings["reason"] == "no such luck."
    assert "  temperature failed: no such luck." in str(choice).splitlines()
    with pytest.raises(RuntimeError, match="no such luck"):
        calibrate(*rows(60), method="temperature")


def test_a_method_that_fails_only_on_all_rows_gives_way_to_the_next(monkeypatch):
    whole = Temperature.fit.__func__

    def fit(cls, logits, labels):
        if len(logits) == 60:
            raise RuntimeError("too many rows.")
        return whole(cls, logits, labels)

    monkeypatch.setattr(Temperature, "fit", classmethod(fit))
    choice = autocalibrate(*rows(60, sharp=3.0), methods=["temperature"])
    assert choice.name == "identity"
    assert record(choice, "temperature", "failed").settings["reason"] == "on all rows: too many rows."


def test_methods_that_need_features_say_so_and_get_them():
    named = next(e.name for e in CALIBRATORS.entries() if e.facts.get("needs_features"))
    choice = autocalibrate(*rows(60), methods=[named])
    assert "features are needed" in record(choice, named, "failed").settings["reason"]


def test_rows_of_a_group_share_a_fold_and_cluster_the_error():
    logits, labels = rows(60, sharp=3.0)
    many = [torch.cat([x] * 4) for x in (logits, labels)]
    groups = np.tile(np.arange(60), 4)
    alone, repeated = (autocalibrate(*many, methods=["temperature"], groups=g) for g in (None, groups))
    widths = [r.high - r.low for c in (alone, repeated) for r in [record(c, "temperature", "nll_change")]]
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.1)
    few = autocalibrate(logits, labels, methods=["temperature"], groups=["a", "b", "c"] * 20)
    assert record(few, "identity", "nll").settings == {"folds": 3}


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"methods": ["temprature"]}, KeyError, "Did you mean 'temperature'"),
        ({"methods": "temperature"}, TypeError, "methods must be a list of names; got 'temperature'"),
        ({"folds": 1}, ValueError, "folds must be at least 2"),
        ({"groups": ["a"] * 60}, ValueError, "of rows from 2 groups or more; got 5 and 1 groups"),
        ({"groups": ["a"] * 7}, ValueError, r"groups must have shape \(60,\)"),
    ],
)
def test_a_bad_request_gets_one_sentence(options, error, said):
    with pytest.raises(error, match=said):
        autocalibrate(*rows(60), **options)


def test_labels_are_needed():
    with pytest.raises(ValueError, match="labels must be given"):
        autocalibrate(rows(60)[0], None)


def test_the_same_seed_gives_the_same_records_and_nothing_global_is_drawn():
    state = torch.get_rng_state()
    first, second, third = (autocalibrate(*rows(80, sharp=2.0), methods=["temperature"], seed=s) for s in (0, 0, 1))
    values = [[r.value for r in c.records if r.metric != "fit_seconds"] for c in (first, second, third)]
    assert values[0] == values[1] != values[2]
    assert torch.equal(state, torch.get_rng_state())


def test_one_column_of_logits_and_numpy_are_taken_as_two_classes():
    logits, labels = rows(100, k=2, sharp=3.0)
    score = (logits[:, 1] - logits[:, 0]).numpy()
    one, two = (autocalibrate(z, labels, methods=["temperature"]) for z in (score, logits))
    assert one.calibrator.temperature == pytest.approx(float(two.calibrator.temperature), rel=1e-9)
    assert one.reason == two.reason


def test_progress_is_told_a_method_before_each_fit():
    told = []
    choice = autocalibrate(*rows(60, sharp=3.0), methods=["temperature"], on_step=told.append)
    assert told == ["temperature"] * 5 + [choice.name]


def test_an_error_of_the_listener_is_not_taken_for_one_of_the_method():
    def listener(name):
        raise RuntimeError("listener")

    with pytest.raises(RuntimeError, match="listener"):
        autocalibrate(*rows(60), methods=["temperature"], on_step=listener)


def test_a_named_method_is_fitted_and_judged_whatever_its_numbers():
    logits, labels = rows(300)
    choice = calibrate(logits, labels, method="temperature")
    assert choice.name == "temperature"
    assert choice.reason.startswith("n = 300: temperature, as asked; ")
    assert {r.method for r in choice.records} == {"identity", "temperature"}
    assert isinstance(calibrate(logits, labels, method="identity").calibrator, Identity)
    few = calibrate(logits[:20], labels[:20], method="temperature")
    assert few.records == ()
    assert few.reason == "n = 20: temperature, as asked; too few rows to judge it (fewer than 50)."
    assert "Temperature: T = " in str(few)


# Real classifiers


@pytest.mark.parametrize("n", [50, 1000])
def test_on_a_real_classifier_the_choice_helps_on_rows_not_seen(n):
    data = np.load(small("logits/cifar10_resnet20_test.npz"))
    logits, labels = torch.from_numpy(data["logits"]).float(), torch.from_numpy(data["labels"]).long()
    choice = autocalibrate(logits[:n], labels[:n], methods=["temperature", "vector"])
    test = Predictions(logits=logits[1000:], labels=labels[1000:])
    change, error = paired(choice.calibrator.calibrate(test).nll.numpy(), test.nll.numpy())
    assert change <= 0
    if n == 1000:  # fifty rows hold one error, which proves nothing, and identity is kept
        assert change < -10 * error


def test_a_loss_above_that_of_identity_is_never_chosen():
    """One wrong row among many right ones can carry the whole loss, and then anything is within one standard error."""
    for seed in range(4):
        g = torch.Generator().manual_seed(seed)
        logits = 2 * torch.randn(300, 2, generator=g)
        labels = logits.argmax(1)
        labels[0] = 1 - labels[0]
        choice = autocalibrate(logits, labels, methods=["temperature", "platt", "beta"])
        loss = {r.method: r.value for r in choice.records if r.metric == "nll"}
        assert loss[choice.name] <= loss["identity"]


def test_when_nothing_else_could_be_fitted_the_reason_says_so():
    logits, labels = torch.randn(100, 3, generator=torch.Generator().manual_seed(0)), torch.arange(100) % 3
    assert "no other method could be fitted: procal" in autocalibrate(logits, labels, methods=["procal"]).reason


def test_predictions_come_in_place_of_logits_and_labels():
    logits, labels = rows(300)
    p = Predictions(logits=logits, labels=labels, groups=np.arange(300) // 3)
    one, two = autocalibrate(p, methods=["temperature"]), autocalibrate(logits, labels, methods=["temperature"])
    assert one.reason == two.reason
    grouped = autocalibrate(p, methods=["temperature"], groups=p.groups)
    assert grouped.records != one.records
    with pytest.raises(ValueError, match="labels and features must be left out with Predictions"):
        autocalibrate(p, labels)
    with pytest.raises(ValueError, match="these predictions lack them"):
        autocalibrate(Predictions(confidence=[0.5] * 60, correct=[True] * 60))


def test_rows_that_name_their_classes_may_be_wrong_below_chance():
    logits, _ = rows(300)
    wrong = (logits.argmax(1) + 1) % 4
    turned = Predictions(logits=logits, labels=wrong, classes=["a", "b", "c", "d"])
    assert autocalibrate(turned, methods=["temperature"]).calibrator.fitted.n == 300
    with pytest.raises(ValueError, match="columns appear to be in another order"):
        autocalibrate(logits, wrong, methods=["temperature"])
