"""Other class shares: Bayes' rule to the last digit, and the shares of unlabelled rows found again."""

import numpy as np
import pytest
import torch

from calibrant.calibrators.label_shift import estimate_prior
from calibrant.calibrators.prior import adjust_prior
from calibrant.predictions.predictions import Predictions

TRAIN, DEPLOY = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.2, 0.7])
MEANS = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])


def rows(n, prior, seed, means=MEANS):
    """Points around one centre a class, drawn with the given class shares."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(prior), n, p=prior)
    return means[labels] + rng.normal(size=(n, means.shape[1])), labels


def bayes(points, prior, means=MEANS):
    """The true probabilities of the classes, row by row and class by class, from densities and shares."""
    out = np.empty((len(points), len(prior)))
    for i, x in enumerate(points):
        for k, share in enumerate(prior):
            out[i, k] = share * np.exp(-0.5 * ((x - means[k]) ** 2).sum())
        out[i] /= out[i].sum()
    return out


def test_adjusted_logits_are_those_of_bayes_rule_under_the_other_prior():
    points, _ = rows(50, TRAIN, 0)
    adjusted = adjust_prior(np.log(bayes(points, TRAIN)) + 3.0, train_prior=TRAIN, deploy_prior=DEPLOY)
    np.testing.assert_allclose(adjusted.softmax(1).numpy(), bayes(points, DEPLOY), atol=1e-13)


@pytest.mark.parametrize("way", ["from_weights", "sampling_rate"])
@pytest.mark.parametrize("change", [[1.0, 4.0, 0.5], {1: 4.0, 2: 0.5}])
def test_weights_and_rates_are_divided_out(way, change):
    p = bayes(rows(50, TRAIN, 1)[0], TRAIN)
    learned = p * np.array([1.0, 4.0, 0.5])
    learned /= learned.sum(1, keepdims=True)
    np.testing.assert_allclose(adjust_prior(np.log(learned), **{way: change}).softmax(1).numpy(), p, atol=1e-13)


def test_a_weighted_fit_is_repaired_by_its_weights():
    """The minimiser of the weighted log loss in one cell of identical rows is found by brute force."""
    counts, weights = np.array([70.0, 30.0]), np.array([1.0, 9.0])
    grid = np.linspace(0.0001, 0.9999, 9999)
    loss = -(counts[0] * weights[0] * np.log(1 - grid) + counts[1] * weights[1] * np.log(grid))
    learned = grid[loss.argmin()]
    logit = torch.tensor([np.log(learned / (1 - learned))])
    assert float(adjust_prior(logit, from_weights=weights).sigmoid()) == pytest.approx(0.3, abs=1e-3)


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_one_column_is_the_score_of_class_1_and_keeps_its_shape(shape):
    z = torch.linspace(-2, 2, 6, dtype=torch.float64)
    both = adjust_prior(torch.stack([torch.zeros(6).double(), z], 1), train_prior=[0.5, 0.5], deploy_prior=[0.9, 0.1])
    one = adjust_prior(z.reshape(shape), train_prior=[0.5, 0.5], deploy_prior=[0.9, 0.1])
    assert one.shape == shape
    assert torch.allclose(one.sigmoid().reshape(-1), both.softmax(1)[:, 1], atol=1e-15)


def test_two_changes_are_two_calls_in_any_order():
    z = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    prior = {"train_prior": TRAIN, "deploy_prior": DEPLOY}
    one = adjust_prior(adjust_prior(z, from_weights=[1, 2, 3]), **prior)
    assert torch.allclose(one, adjust_prior(adjust_prior(z, **prior), from_weights=[1, 2, 3]), atol=1e-14)


def test_types_are_kept_and_half_precision_is_widened():
    for given, out in ((torch.float16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)):
        assert adjust_prior(torch.randn(4, 2).to(given), from_weights=[1, 2]).dtype == out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "exactly one change must be named: .*got none"),
        ({"train_prior": TRAIN}, "got train_prior"),
        ({"deploy_prior": TRAIN}, "got deploy_prior"),
        ({"train_prior": TRAIN, "deploy_prior": DEPLOY, "from_weights": [1, 1, 1]}, "For two changes call twice"),
        ({"train_prior": [50, 30, 20], "deploy_prior": DEPLOY}, "train_prior must sum to 1; it sums to 100. Divide"),
        ({"train_prior": TRAIN, "deploy_prior": [0.5, 0.5, 0.0]}, "deploy_prior must be positive; got 0"),
        (
            {"train_prior": TRAIN, "deploy_prior": [0.5, 0.5]},
            r"deploy_prior must hold 3 numbers, one a class; got shape",
        ),
        ({"from_weights": [1, -1, 1]}, "from_weights must be positive; got -1"),
        ({"from_weights": [1, float("nan"), 1]}, "from_weights must be positive; got nan"),
        ({"sampling_rate": {3: 0.1}}, "sampling_rate must have classes 0 to 2 as keys; got 3"),
        ({"sampling_rate": {"cat": 0.1}}, "as keys; got 'cat'"),
    ],
)
def test_a_bad_request_gets_one_sentence(options, said):
    with pytest.raises(ValueError, match=said):
        adjust_prior(torch.randn(4, 3), **options)


def test_probabilities_are_refused_as_logits():
    with pytest.raises(ValueError, match="logits must be raw scores"):
        adjust_prior(torch.full((4, 2), 0.5), from_weights=[1, 2])


def test_the_estimate_is_the_maximum_of_the_likelihood():
    """Against a search over all priors of two classes."""
    points, _ = rows(200, [0.8, 0.2], 2, MEANS[:2])
    p = bayes(points, [0.4, 0.6], MEANS[:2])
    grid = np.linspace(0.0005, 0.9995, 1999)
    likelihood = [np.log(p[:, 0] * s / 0.4 + p[:, 1] * (1 - s) / 0.6).sum() for s in grid]
    found = estimate_prior(np.log(p), [0.4, 0.6], resamples=20)
    assert found.converged
    assert found.prior[0] == pytest.approx(grid[int(np.argmax(likelihood))], abs=1e-3)
    assert found.log_likelihood[-1] * 200 == pytest.approx(max(likelihood), abs=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_the_likelihood_never_falls(seed):
    points, _ = rows(100, DEPLOY, seed)
    steps = estimate_prior(np.log(bayes(points, TRAIN)), TRAIN, resamples=20).log_likelihood
    assert steps[0] == pytest.approx(0.0, abs=1e-12)
    assert (np.diff(steps) >= -1e-14).all()
    assert len(steps) > 3


def test_the_interval_holds_the_true_share_nine_times_in_ten():
    inside = []
    for trial in range(150):
        points, _ = rows(300, DEPLOY, 100 + trial)
        found = estimate_prior(np.log(bayes(points, TRAIN)), TRAIN, resamples=100, seed=trial)
        assert ((found.low <= found.prior) & (found.prior <= found.high)).all()
        inside.append((found.low <= DEPLOY) & (found.high >= DEPLOY))
    assert 0.85 <= np.mean(inside) <= 0.95  # 450 judgements in 150 samples; 0.9 less the cost of a percentile interval


def test_adjusting_to_the_estimate_mends_the_shifted_rows():
    points, labels = rows(2000, DEPLOY, 3)
    z = torch.from_numpy(np.log(bayes(points, TRAIN)))
    adjusted = adjust_prior(z, train_prior=TRAIN, deploy_prior=estimate_prior(z, TRAIN).prior)
    loss = [float(Predictions(logits=logits, labels=labels).nll.mean()) for logits in (z, adjusted)]
    assert loss[1] < loss[0] - 0.05


def held_out(temperature=1.0, weights=(1.0, 1.0, 1.0), prior=TRAIN, n=2000, seed=9):
    points, labels = rows(n, prior, seed)
    logits = np.log(bayes(points, TRAIN) * np.array(weights)) / temperature
    return Predictions(logits=logits, labels=labels)


def test_calibrated_scores_are_judged_and_accepted():
    points, _ = rows(300, DEPLOY, 4)
    z = np.log(bayes(points, TRAIN))
    assert "not judged" in estimate_prior(z, TRAIN, resamples=20).notes[0]
    for seed in range(20):
        assert estimate_prior(z, TRAIN, held_out=held_out(n=500, seed=seed), resamples=20).notes == ()


@pytest.mark.parametrize("bad", [{"temperature": 0.5}, {"weights": (1.0, 1.0, 5.0)}, {"prior": DEPLOY}])
def test_scores_whose_mean_is_not_the_observed_share_are_refused(bad):
    with pytest.raises(
        ValueError, match=r"must be calibrated; class \d is predicted in \d+.\d % of its 2 000 rows and seen"
    ):
        estimate_prior(np.log(bayes(rows(300, DEPLOY, 4)[0], TRAIN)), TRAIN, held_out=held_out(**bad))


@pytest.mark.parametrize(("temperature", "way"), [(0.5, "over"), (2.0, "under")])
def test_scores_right_on_average_but_too_sure_or_not_sure_enough_are_refused(temperature, way):
    points, labels = rows(2000, [0.5, 0.5], 7, MEANS[:2])
    z = np.log(bayes(points, [0.5, 0.5], MEANS[:2]))
    assert estimate_prior(z, [0.5, 0.5], held_out=Predictions(logits=z, labels=labels)).notes == ()
    with pytest.raises(ValueError, match=rf"must be calibrated; they are {way}-confident \(temperature"):
        estimate_prior(z, [0.5, 0.5], held_out=Predictions(logits=z / temperature, labels=labels))


def test_a_train_prior_that_is_not_that_of_the_scores_is_refused():
    z = np.log(bayes(rows(300, DEPLOY, 4)[0], TRAIN))
    with pytest.raises(
        ValueError, match=r"held_out must share train_prior; class 0 is expected in 33.3 % .* Pass the shares"
    ):
        estimate_prior(z, [1 / 3, 1 / 3, 1 / 3], held_out=held_out())
    with pytest.raises(ValueError, match="held_out must have 3 classes, as logits have; got 2"):
        estimate_prior(z, TRAIN, held_out=Predictions(logits=torch.randn(50, 2), labels=[0, 1] * 25))


@pytest.mark.parametrize("z", [torch.zeros(1, 3), torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 1.0]])])
def test_scores_that_cannot_tell_classes_apart_are_refused(z):
    """All classes, or the last two, are as likely as their shares in every row."""
    z = z.repeat(50, 1) + torch.from_numpy(np.log(TRAIN))
    with pytest.raises(ValueError, match="logits must tell the classes apart"):
        estimate_prior(z, TRAIN)


def test_a_class_that_is_gone_gets_a_share_near_zero():
    points, _ = rows(500, [0.6, 0.4, 0.0], 5)
    found = estimate_prior(np.log(bayes(points, TRAIN)), TRAIN)
    assert found.prior[2] < 0.02
    assert found.low[2] < 1e-3
    assert found.prior.sum() == pytest.approx(1)


def test_rows_that_all_look_alike_leave_open_what_as_many_labels_would():
    """Ten rows surely of class 0: a share of class 1 up to 26 % is possible, 1 - 0.05^(1/10)."""
    found = estimate_prior(torch.tensor([[30.0, 0.0]]).repeat(10, 1), [0.5, 0.5])
    assert found.prior[1] < 1e-4
    assert found.high[1] == pytest.approx(1 - 0.05**0.1, abs=1e-3)


def test_scores_that_say_nothing_are_refused():
    z = np.log(bayes(rows(300, DEPLOY, 4)[0], TRAIN))
    labels = np.repeat([0, 1, 2], [150, 90, 60])
    logits = np.random.default_rng(0).normal(size=(300, 3)) + np.log(TRAIN)
    with pytest.raises(ValueError, match="must be calibrated"):
        estimate_prior(z, TRAIN, held_out=Predictions(logits=logits, labels=labels))


def test_an_unfinished_search_says_so_and_the_words_name_the_change():
    z = np.log(bayes(rows(300, DEPLOY, 4)[0], TRAIN))
    found = estimate_prior(z, TRAIN, max_steps=2, resamples=20)
    assert not found.converged
    assert any("EM had not converged after 2 steps" in note for note in found.notes)
    assert str(found).startswith("class shares in 300 unlabelled rows, with 90 % intervals:\n  class 2: ")
    assert "was 20.0 %" in str(found)


@pytest.mark.parametrize("options", [{"level": 0.0}, {"level": 1.0}, {"resamples": 5}, {"max_steps": 0}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=rf"^{next(iter(options))} must (lie in|be at least)"):
        estimate_prior(torch.randn(50, 3), TRAIN, **options)


def test_the_same_seed_gives_the_same_interval_and_nothing_global_is_drawn():
    z = np.log(bayes(rows(100, DEPLOY, 6)[0], TRAIN))
    state, other = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002  the state that must not move
    first, second, third = (estimate_prior(z, TRAIN, resamples=20, seed=s) for s in (1, 1, 2))
    assert np.array_equal(first.low, second.low)
    assert not np.array_equal(first.low, third.low)
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(other, np.random.get_state()[1])  # noqa: NPY002
