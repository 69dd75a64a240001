"""Learned trust predictors: their losses, their heads, and that they do not lose to max-softmax."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from calibrant.evaluation.audit import audit
from calibrant.metrics.delong import paired_auroc
from calibrant.metrics.ranking import failure_auroc, tnr, tpr
from calibrant.metrics.scores import log_odds, own_scores
from calibrant.predictions.predictions import Predictions
from calibrant.registry import TRUST
from calibrant.training.models.build import make
from calibrant.trust._machinery.heads import started, z_of
from calibrant.trust.bce import bce_loss
from calibrant.trust.class_balanced import class_balanced_loss, effective_weights
from calibrant.trust.correctness_ranking import ranking_loss
from calibrant.trust.focal import focal_loss
from calibrant.trust.steep_slope import alpha_sweep, steep_slope_loss
from calibrant.trust.tcp import tcp_loss

Z = [2.0, 0.5, -1.0, 1.5, -0.3, 0.2]
RIGHT = [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
TRUE = [0.9, 0.6, 0.2, 0.8, 0.45, 0.3]

# A row a method: its loss, the target it learns, and the mean loss of the six rows above.
LOSSES = {
    "bce": (bce_loss, RIGHT, 0.4613623457623622),
    "class_balanced": (partial(class_balanced_loss, counts=(2, 4), beta=0.5), RIGHT, None),
    "correctness_ranking": (ranking_loss, RIGHT, None),
    "focal": (focal_loss, RIGHT, 0.10365883024828486),
    "steep_slope": (steep_slope_loss, RIGHT, 0.5565146885621837),
    "tcp": (tcp_loss, TRUE, 0.011491569734572963),
}
UNLEARNED = {"mcp", "trust_score"}  # read rows, and have no loss
ONLOOKERS = {"ensemble", "mc_dropout", "oracle"}


def rows(n=1500, k=5, *, seed=0, too_sure=2.0, features="noise", d=6):
    """Rows of a classifier that is too sure of itself; features that know nothing, or which answers are wrong."""
    g = torch.Generator().manual_seed(seed)
    truth = 2 * torch.randn(n, k, generator=g)
    labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
    logits = too_sure * truth
    seen = torch.randn(n, d, generator=g)
    if features == "telling":
        seen[:, 0] += 2.0 * (logits.argmax(1) == labels)
    return logits, labels, seen


def test_every_trust_predictor_is_tested_here_or_in_its_own_file():
    assert set(TRUST) == set(LOSSES) | UNLEARNED | ONLOOKERS
    assert {entry.name for entry in TRUST.entries() if entry.facts["reads"] == "inputs"} == ONLOOKERS


@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", [name for name, row in LOSSES.items() if row[2]])
def test_losses_have_their_known_values(name, kind, tolerance):
    loss, target, mean = LOSSES[name]
    found = loss(torch.tensor(Z, dtype=kind), torch.tensor(target, dtype=kind))
    assert found.shape == (6,)
    assert float(found.mean()) == pytest.approx(mean, abs=tolerance)


def test_the_steep_slope_loss_is_that_of_the_papers_figure_and_not_of_its_equation_8():
    z, right = torch.tensor(Z, dtype=torch.float64), torch.tensor(RIGHT, dtype=torch.float64)
    known = [0.145537677861, 0.348651869402, 0.173343091781, 0.180932194923, 0.891689095074, 1.598934202332]
    np.testing.assert_allclose(steep_slope_loss(z, right), known, atol=1e-10)
    steeper = steep_slope_loss(z, right, alpha_plus=2.0, alpha_minus=5.0)
    assert float(steeper.mean()) == pytest.approx(0.748827538188765, abs=1e-10)
    grid = torch.linspace(-50, 50, 2001, dtype=torch.float64)
    assert bool((steep_slope_loss(grid, torch.ones_like(grid)).diff() < 0).all())  # printed, it would rise
    assert bool((steep_slope_loss(grid, torch.zeros_like(grid)).diff() > 0).all())
    assert float(steep_slope_loss(torch.zeros(1).double(), torch.ones(1).double())) == pytest.approx(1 - math.exp(-1))


@pytest.mark.parametrize(("plus", "minus"), [(1.0, 3.0), (2.0, 5.0), (10.0, 6.0)])
def test_the_steep_slope_loss_is_bounded_as_its_theorem_needs(plus, minus):
    z = torch.cat([torch.linspace(-30, 30, 601), torch.tensor([-1e30, 1e30])]).double()
    most = max(math.exp(a) - math.exp(-a) for a in (plus, minus))
    for right in (0.0, 1.0):
        loss = steep_slope_loss(z, torch.full_like(z, right), alpha_plus=plus, alpha_minus=minus)
        assert float(loss.min()) >= 0
        assert float(loss.max()) <= most * (1 + 1e-12)
    worst = steep_slope_loss(torch.tensor([-1e30]).double(), torch.ones(1).double(), alpha_plus=plus)
    assert float(worst) == pytest.approx(math.exp(plus) - math.exp(-plus))


def test_gradients_of_the_steep_slope_loss():
    for z, right, alphas, slope in ((2.0, 1.0, (1.0, 3.0), -0.05704634655917689), (-1.0, 0.0, (1.0, 3.0), None)):
        at = torch.tensor([z], dtype=torch.float64, requires_grad=True)
        steep_slope_loss(
            at, torch.tensor([right]).double(), alpha_plus=alphas[0], alpha_minus=alphas[1]
        ).sum().backward()
        assert float(at.grad) == pytest.approx(0.16734762011132237 if slope is None else slope, abs=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_right_and_finite_at_extremes(name):
    loss, target, _ = LOSSES[name]
    z = torch.tensor(Z, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: loss(x, torch.tensor(target, dtype=torch.float64)), z)
    for size in (50.0, 1e4):
        far = (size * torch.tensor([1.0, -1.0, 1.0, -1.0])).requires_grad_()
        value = loss(far, torch.tensor([1.0, 0.0, 0.0, 1.0]))
        value.sum().backward()
        assert bool(value.isfinite().all() and far.grad.isfinite().all())


def test_class_balanced_weights_have_their_known_values():
    for beta, known in (
        (0.99, (0.776041581961, 1.223958418039)),
        (0.999, (0.276437045470, 1.723562954530)),
        (0.9999, (0.207254517625, 1.792745482375)),
    ):
        assert effective_weights((900, 100), beta=beta) == pytest.approx(known, abs=1e-11)
    z, right = torch.tensor(Z), torch.tensor(RIGHT)
    even = class_balanced_loss(z, right, counts=(3, 3), beta=0.9)
    np.testing.assert_allclose(even, bce_loss(z, right), rtol=1e-5)


def test_the_ranking_loss_is_the_mean_over_all_pairs():
    z, right = torch.tensor(Z, dtype=torch.float64), torch.tensor(RIGHT, dtype=torch.float64)
    sure, pairs = z.sigmoid().tolist(), []
    for i in range(6):
        for j in range(6):
            if RIGHT[i] > RIGHT[j]:
                c = RIGHT[i] - RIGHT[j]
                pairs.append(max(0.0, -np.sign(c) * (sure[i] - sure[j]) + abs(c)))
    assert float(ranking_loss(z, right).mean()) == pytest.approx(np.mean(pairs), abs=1e-12)
    assert float(ranking_loss(z, torch.ones(6).double()).sum()) == 0


def test_a_signed_distance_is_the_distance_from_the_plane():
    net = {"w1": torch.tensor([[1.0, -2.0, 0.5]]).double(), "shift": torch.tensor(0.3, dtype=torch.float64)}
    x = torch.tensor([[0.4, 0.1, 1.2]], dtype=torch.float64)
    assert float(z_of(torch.zeros(1), x, net, "signed_distance")) == pytest.approx(0.4800793585191833, abs=1e-7)
    assert float(z_of(torch.zeros(1), x, net, "linear")) == pytest.approx(1.1, abs=1e-12)


@pytest.mark.parametrize("kind", ["linear", "signed_distance", "mlp"])
def test_an_anchored_head_starts_as_the_classifiers_own_confidence(kind):
    logits, _, seen = rows(50)
    net = started(seen.double(), kind, anchor=True, seed=1)
    z = z_of(log_odds(logits), seen.double(), net, kind)
    np.testing.assert_allclose(z.sigmoid(), logits.double().softmax(1).amax(1), atol=1e-6)


def test_own_scores_are_finite_and_ranked_where_confidence_rounds_to_one():
    logits = torch.tensor([[1e4, 0.0, -1e4], [40.0, 0.0, 0.0], [41.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert bool(own_scores(logits).isfinite().all())
    odds = log_odds(logits)
    assert float(odds[2]) > float(odds[1])  # both confidences are 1 in float32
    assert float(log_odds(torch.zeros(1, 4))) == pytest.approx(-math.log(3))


def test_paired_auroc_agrees_with_the_metric_and_its_error_with_resampling():
    logits, labels, seen = rows(400, features="telling")
    p = Predictions(logits=logits, labels=labels)
    one, other, right = seen[:, 0].double().numpy(), p.confidence.numpy(), p.correct.numpy()
    a, b, spread = paired_auroc(one, other, right)
    assert a == pytest.approx(failure_auroc(torch.tensor(one), p.correct), abs=1e-12)
    assert b == pytest.approx(failure_auroc(p.confidence, p.correct), abs=1e-12)
    g, gaps = np.random.default_rng(0), []
    for _ in range(300):
        draw = g.integers(0, 400, 400)
        x, y, _ = paired_auroc(one[draw], other[draw], right[draw])
        gaps.append(x - y)
    assert spread == pytest.approx(np.std(gaps), rel=0.15)


@pytest.mark.parametrize("name", LOSSES)
def test_a_fitted_predictor_ranks_no_worse_than_max_softmax_whatever_the_features(name):
    logits, labels, seen = rows(5000, seed=list(LOSSES).index(name))
    fit, judge = torch.arange(1000), torch.arange(1000, 5000)
    trust = TRUST[name].fit(logits[fit], labels[fit], seen[fit])
    p = Predictions(logits=logits[judge], labels=labels[judge], features=seen[judge])
    judged = trust.judge(p)
    assert judged.confidence.dtype == torch.float64
    assert failure_auroc(judged.confidence, judged.correct) > failure_auroc(p.confidence, p.correct) - 0.003


@pytest.mark.parametrize("name", ["bce", "steep_slope"])
def test_features_that_know_are_used_and_those_that_do_not_are_left_aside(name):
    logits, labels, seen = rows(2000, features="telling")
    fit, judge = torch.arange(1000), torch.arange(1000, 2000)
    trust = TRUST[name].fit(logits[fit], labels[fit], seen[fit])
    p = Predictions(logits=logits[judge], labels=labels[judge], features=seen[judge])
    judged = trust.judge(p)
    assert trust.needs_features
    assert failure_auroc(judged.confidence, judged.correct) > failure_auroc(p.confidence, p.correct) + 0.03
    assert trust.fitted.auroc[1] > trust.fitted.auroc[0]
    blind = TRUST[name].fit(*rows(800))
    assert not blind.needs_features
    assert "so its ranking is kept" in str(blind)


def test_the_learned_threshold_is_usable_where_that_of_max_softmax_is_not():
    logits, labels, _ = rows(4000, too_sure=4.0)
    fit, judge = torch.arange(2000), torch.arange(2000, 4000)
    p = Predictions(logits=logits[judge], labels=labels[judge])
    judged = TRUST["steep_slope"].fit(logits[fit], labels[fit]).judge(p)
    assert tnr(p.confidence, p.correct) < 0.15
    assert tnr(judged.confidence, judged.correct) > 0.6
    assert tpr(judged.confidence, judged.correct) > 0.4


def test_bce_is_calibrated_on_other_rows():
    logits, labels, _ = rows(6000, too_sure=3.0)
    trust = TRUST["bce"].fit(logits[:3000], labels[:3000])
    judged = trust.judge(Predictions(logits=logits[3000:], labels=labels[3000:]))
    assert float(judged.confidence.mean()) == pytest.approx(float(judged.correct.double().mean()), abs=0.03)


def test_the_papers_heads_learn_from_features_alone_and_know_nothing_of_the_logits():
    logits, labels, seen = rows(1200, features="telling")
    for head in ("linear", "signed_distance"):
        trust = TRUST["steep_slope"].fit(logits, labels, seen, anchor=False, head=head)
        same = trust(logits, seen)
        assert torch.equal(same, trust(logits.flip(1), seen))
        assert failure_auroc(same, logits.argmax(1) == labels) > 0.85
    with pytest.raises(ValueError, match="features must be given with anchor=False"):
        TRUST["bce"].fit(logits, labels, anchor=False)


def test_a_confidnet_head_learns_and_repeats_itself():
    logits, labels, seen = rows(300, features="telling")
    one, two = (TRUST["tcp"].fit(logits, labels, seen, head="mlp", anchor=False, seed=3) for _ in range(2))
    assert one.w1.shape == (400, 6)
    assert one.w5.shape == (1, 400)
    assert torch.equal(one(logits, seen), two(logits, seen))
    assert one.distrust_below == pytest.approx(0.2)


def test_fits_are_repeatable_and_leave_the_random_state_alone():
    logits, labels, seen = rows(300)
    before = torch.get_rng_state()
    one, two = (TRUST["focal"].fit(logits, labels, seen) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(one(logits), two(logits))


def test_one_column_of_logits_is_the_score_of_class_one():
    g = torch.Generator().manual_seed(0)
    score = 4 * torch.randn(800, generator=g)
    labels = (torch.rand(800, generator=g) < (score / 2).sigmoid()).long()
    pair = torch.stack([torch.zeros(800), score], 1)
    one, two = TRUST["bce"].fit(score, labels), TRUST["bce"].fit(pair, labels)
    np.testing.assert_allclose(one(score), two(pair), atol=1e-9)
    np.testing.assert_allclose(one(score[:, None]), two(pair), atol=1e-9)


def test_judging_keeps_groups_and_weights_and_knows_the_rows_of_the_fit():
    logits, labels, _ = rows(400)
    weights = torch.ones(400)
    weights[:10] = 2
    p = Predictions(logits=logits, labels=labels, groups=["a", "b"] * 200, weights=weights)
    trust = TRUST["bce"].fit(logits, labels)
    judged = trust.judge(p)
    assert torch.equal(judged.weights, p.weights)
    assert list(judged.groups) == list(p.groups)
    assert judged.known() == 1
    assert "rows the trust predictor was fitted on" in audit(judged, resamples=20).findings.notes[0]
    some = trust.judge(Predictions(logits=logits.flip(0)[:300], labels=labels.flip(0)[:300]))
    assert "rows are among those the trust predictor was fitted on" in audit(some, resamples=20).findings.notes[0]
    other, truth, _ = rows(400, seed=9)
    assert trust.judge(Predictions(logits=other, labels=truth)).known() == 0


def test_few_errors_fit_the_scale_alone_and_say_so():
    logits, labels, seen = rows(200, too_sure=1.0)
    right = logits.argmax(1) == labels
    keep = torch.cat([right.nonzero().squeeze(1), (~right).nonzero().squeeze(1)[:5]])
    trust = TRUST["bce"].fit(logits[keep], labels[keep], seen[keep])
    assert "fewer than 20 rows are wrong" in str(trust)
    assert not trust.needs_features


GOOD = rows(60)
BAD = {
    "all right": (lambda: TRUST["bce"].fit(GOOD[0], GOOD[0].argmax(1)), "all 60 are right"),
    "all wrong": (
        lambda: TRUST["bce"].fit(GOOD[0], GOOD[0].argsort(1)[:, torch.arange(60) % 4].diagonal()),
        "are wrong",
    ),
    "no labels": (lambda: TRUST["bce"].fit(GOOD[0], None), "labels must be given"),
    "NaN": (lambda: TRUST["bce"].fit(GOOD[0] * math.nan, GOOD[1]), "finite"),
    "bad features": (lambda: TRUST["bce"].fit(GOOD[0], GOOD[1], GOOD[2] * math.nan), "features must be finite"),
    "head": (lambda: TRUST["bce"].fit(*GOOD, head="tree"), "head must be 'linear', "),
    "alpha": (lambda: TRUST["steep_slope"].fit(*GOOD, alpha_minus=0.0), "alpha_plus and alpha_minus must lie in"),
    "gamma": (lambda: TRUST["focal"].fit(*GOOD, gamma=-1.0), "gamma must be a finite number of at least 0"),
    "beta": (lambda: TRUST["class_balanced"].fit(*GOOD, beta=1.0), "beta must lie in"),
    "columns": (lambda: TRUST["mcp"].fit(GOOD[0], GOOD[1])(GOOD[0][:, :3]), "logits must have 5 columns"),
    "loss": (lambda: TRUST["oracle"].fit(make("mlp", 3, channels=1, side=8), [], loss="mcp"), "loss must be that of"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_answered_in_one_sentence(name):
    act, words = BAD[name]
    with pytest.raises(ValueError, match=words):
        act()


def test_the_alpha_sweep_trades_trusted_errors_for_distrusted_right_answers():
    logits, labels, _ = rows(3000)
    p = Predictions(logits=logits, labels=labels)
    swept = alpha_sweep(p.take(torch.arange(1500)), p.take(torch.arange(1500, 3000)), alphas=(0.5, 2.0, 4.0))
    assert bool((np.diff(swept["tnr"]) > 0).all())
    assert bool((np.diff(swept["tpr"]) < 0).all())
    assert bool(np.isfinite(swept["loss"]).all())


class Small(nn.Module):
    """A classifier with everything that must not change: weights, BatchNorm statistics, dropout."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(8, 3)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def small_problem(n=512, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, inputs = Small(), torch.randn(n, 4)
        with torch.no_grad():
            model.head.weight *= 6
            model.eval()
            labels = torch.multinomial((model(inputs) / 2).softmax(1), 1).squeeze(1)
        model.train()
        model.body[3].eval()
    return model, list(zip(inputs.split(64), labels.split(64), strict=True))


def photograph(model):
    return {name: value.clone() for name, value in model.state_dict().items()}, [m.training for m in model.modules()]


@pytest.mark.parametrize("loss", ["bce", "steep_slope", "tcp"])
@pytest.mark.parametrize("anchor", [True, False])
def test_an_oracle_learns_and_leaves_the_classifier_as_it_was(loss, anchor):
    model, loader = small_problem()
    state, modes = photograph(model)
    adam = partial(torch.optim.Adam, lr=1e-2)
    others = {"validation": loader[6:]} if anchor else {}
    oracle = TRUST["oracle"].fit(model, loader[:6], loss=loss, anchor=anchor, epochs=3, optimiser=adam, **others)
    after, same_modes = photograph(model)
    assert modes == same_modes
    assert all(torch.equal(state[name], after[name]) for name in state)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert oracle.history[3]["loss"] < oracle.history[1]["loss"]
    assert anchor or not torch.equal(oracle.backbone[0].weight, model.body[0].weight)
    assert not any(p is q for p in oracle.parameters() for q in model.parameters())
    judged = oracle.judge(loader)
    with torch.no_grad():
        model.eval()
        truth = torch.cat([model(x).argmax(1) == y for x, y in loader])
    assert torch.equal(judged.correct, truth)
    assert oracle.distrust_below == (pytest.approx(1 / 3) if loss == "tcp" else 0.5)


def test_an_anchored_oracle_keeps_its_start_unless_an_epoch_is_surely_better():
    model, loader = small_problem()
    wild = partial(torch.optim.SGD, lr=50.0)
    oracle = TRUST["oracle"].fit(model, loader[:4], epochs=2, optimiser=wild, validation=loader[4:])
    judged = oracle.judge(loader[4:])
    with torch.no_grad():
        sure = torch.cat([model.eval()(x) for x, _ in loader[4:]]).double().softmax(1).amax(1)
    np.testing.assert_allclose(judged.confidence, sure, atol=1e-6)
    assert oracle.history[0]["auroc"] == pytest.approx(failure_auroc(sure, judged.correct), abs=1e-6)


def test_an_oracle_that_can_learn_more_leaves_its_start():
    model, loader = small_problem(2048)
    with torch.no_grad():  # wrong wherever the last input is large, which max-softmax does not know
        model.eval()
        loader = [(x, (model(x).argmax(1) + (x[:, 3] > 0.5)) % 3) for x, _ in loader]
    adam = partial(torch.optim.Adam, lr=1e-2)
    oracle = TRUST["oracle"].fit(model, loader[:24], epochs=5, optimiser=adam, validation=loader[24:])
    scores = [told["auroc"] for told in oracle.history]
    judged = oracle.judge(loader[24:])
    assert failure_auroc(judged.confidence, judged.correct) == pytest.approx(max(scores), abs=1e-9)
    assert max(scores) > scores[0] + 0.02


def test_an_oracle_of_another_architecture_and_size_watches_as_well():
    classifier = make("mlp", 3, channels=1, side=8)
    loader = [(torch.randn(16, 1, 8, 8), torch.arange(16) % 3)]
    backbone = make("lenet", 3, channels=1, side=16).body
    before = photograph(backbone)[0]
    options = {"anchor": False, "epochs": 1}
    oracle = TRUST["oracle"].fit(classifier, loader, backbone=backbone, resize=16, head="signed_distance", **options)
    assert oracle.confidence(loader[0][0]).shape == (16,)
    assert all(torch.equal(before[name], value) for name, value in backbone.state_dict().items())
    shared = TRUST["oracle"].fit(classifier, loader, backbone=classifier.body, **options)
    assert not torch.equal(shared.backbone[1].weight, classifier.body[1].weight)


def test_an_oracle_takes_one_column_of_logits_and_counts_for_class_balanced():
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    loader = [(torch.randn(32, 4), torch.arange(32) % 2) for _ in range(2)]
    oracle = TRUST["oracle"].fit(model, loader, loss="class_balanced", backbone=nn.Linear(4, 3), anchor=False, epochs=1)
    assert sum(oracle.settings["options"]["counts"]) == 64
    assert bool(oracle.confidence(loader[0][0]).isfinite().all())


def test_an_oracle_repeats_itself_and_leaves_the_random_state_alone():
    model, loader = small_problem()
    data = torch.utils.data.TensorDataset(torch.cat([x for x, _ in loader]), torch.cat([y for _, y in loader]))
    shuffled = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    before = torch.get_rng_state()
    one, two = (TRUST["oracle"].fit(model, shuffled, anchor=False, epochs=1, seed=4) for _ in range(2))
    one.judge(shuffled)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(one.confidence(loader[0][0]), two.confidence(loader[0][0]))


ORACLES = {
    "no body": (lambda m, b: {"classifier": nn.Linear(4, 3), "loader": b}, "backbone must be given"),
    "no validation": (lambda m, b: {"anchor": True, "loader": b}, "validation must be given with anchor=True"),
    "generator": (lambda m, b: {"loader": iter(b)}, "loader must give its batches anew"),
    "option": (lambda m, b: {"loader": b, "options": {"gama": 2.0}}, "options must be among none"),
    "value": (
        lambda m, b: {"loader": b, "loss": "steep_slope", "options": {"alpha_plus": -1.0}},
        "alpha_plus and alpha_minus must lie in",
    ),
    "labels": (lambda m, b: {"loader": [(x, y + 5) for x, y in b]}, "labels must lie in 0 to 2"),
    "lengths": (lambda m, b: {"loader": [(x, y[:-1]) for x, y in b]}, "a row for each label"),
    "epochs": (lambda m, b: {"loader": b, "epochs": -1}, "epochs and resize must not be negative"),
    "one kind": (
        lambda m, b: {"loader": b, "anchor": True, "validation": [(b[0][0], m.eval()(b[0][0]).argmax(1))]},
        "validation must hold answers that are right",
    ),
}


@pytest.mark.parametrize("name", ORACLES)
def test_a_bad_oracle_is_answered_in_one_sentence(name):
    given, words = ORACLES[name]
    model, loader = small_problem(128)
    asked = {"classifier": model, "anchor": False, "epochs": 1} | given(model, loader)
    with pytest.raises(ValueError, match=words):
        TRUST["oracle"].fit(**asked)


def test_answers_that_are_all_wrong_are_judged_all_the_same():
    model, loader = small_problem(128)
    oracle = TRUST["oracle"].fit(model, loader, anchor=False, epochs=0)
    with torch.no_grad():
        wrong = [(x, (model.eval()(x).argmax(1) + 1) % 3) for x, _ in loader]
    assert not oracle.judge(wrong).correct.any()


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_fitting_works_inside_other_modes(mode):
    logits, labels, seen = rows(300)
    model, loader = small_problem(128)
    with mode():
        inside = TRUST["bce"].fit(logits.clone(), labels, seen.clone())
        TRUST["oracle"].fit(model, loader, anchor=False, epochs=1)
    assert torch.equal(inside(logits), TRUST["bce"].fit(logits, labels, seen)(logits))


def test_features_keep_their_digits_between_fit_and_call():
    logits, labels, _ = rows(600)
    right = logits.argmax(1) == labels
    g = torch.Generator().manual_seed(3)
    seconds = 1.7e9 + 40 * right.double()[:, None] + 10 * torch.randn(600, 1, generator=g, dtype=torch.float64)
    for seen in (seconds, (seconds - 1.7e9) * 1e-10, (seconds - 1.7e9) * 1e40):
        trust = TRUST["bce"].fit(logits, labels, seen)
        assert failure_auroc(trust(logits, seen), right) > 0.95


@pytest.mark.parametrize("name", LOSSES)
def test_logits_on_any_scale_give_confidences_that_differ(name):
    logits, labels, _ = rows(600)
    right = logits.argmax(1) == labels
    for scale, head in ((1e-3, "linear"), (30.0, "linear"), (1e4, "linear"), (1e4, "signed_distance")):
        sure = TRUST[name].fit(scale * logits, labels, head=head)(scale * logits)
        assert float(sure.quantile(0.95) - sure.quantile(0.05)) > 0.05, (scale, head)
        assert failure_auroc(sure, right) > failure_auroc(log_odds(scale * logits), right) - 0.003, (scale, head)


def test_equal_logits_and_equal_features_are_fitted_and_ranked_by_nothing():
    _, labels, _ = rows(200)
    trust = TRUST["bce"].fit(torch.zeros(200, 5), labels, torch.ones(200, 2))
    assert bool((trust(torch.zeros(3, 5)) == trust(torch.zeros(1, 5))).all())
    assert "nothing was learned" in str(trust)
