"""The scikit-learn adapter: scikit-learn's own checks, honest scores, and every method by name."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_digits, load_iris, make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedKFold, cross_val_predict, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from calibrant.integrations.sklearn import CalibratedClassifier
from calibrant.registry import CALIBRATORS

X, Y = make_classification(400, 12, n_informative=4, n_redundant=6, n_classes=3, random_state=0)
BINARY = Y > 0


# On separable toy data every held-out row is right, and temperature says that it has no optimum.
@pytest.mark.filterwarnings("ignore:temperature. T is at the bound")
@parametrize_with_checks([CalibratedClassifier(), CalibratedClassifier(GaussianNB(), cv=3)])
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


def test_the_calibrator_is_fitted_on_scores_of_rows_not_seen():
    model = CalibratedClassifier(GaussianNB(), "vector", cv=5, seed=3).fit(X, Y)
    folds = StratifiedKFold(5, shuffle=True, random_state=3)
    held_out = np.log(cross_val_predict(GaussianNB(), X, Y, cv=folds, method="predict_proba").clip(1e-12))
    order = np.concatenate([test for _, test in folds.split(X, Y)])
    by_hand = CALIBRATORS["vector"].fit(held_out[order], Y[order])
    scores = np.log(GaussianNB().fit(X, Y).predict_proba(X).clip(1e-12))
    wanted = by_hand(torch.from_numpy(scores)).softmax(1).numpy()
    np.testing.assert_allclose(model.predict_proba(X), wanted, atol=1e-12)


def test_one_score_is_the_logit_of_the_second_class():
    model = CalibratedClassifier(LinearSVC(random_state=0), cv=4).fit(X, BINARY)
    score = LinearSVC(random_state=0).fit(X, BINARY).decision_function(X) / float(model.calibrator_.temperature)
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-score)), atol=1e-12)


def test_many_scores_are_logits():
    model = CalibratedClassifier(LinearSVC(random_state=0)).fit(X, Y)
    scores = LinearSVC(random_state=0).fit(X, Y).decision_function(X) / float(model.calibrator_.temperature)
    np.testing.assert_allclose(model.predict_proba(X), softmax(scores, 1), atol=1e-12)


def test_it_helps_a_model_that_is_too_sure():
    fitted, fresh = np.arange(200), np.arange(200, 400)
    before = log_loss(Y[fresh], GaussianNB().fit(X[fitted], Y[fitted]).predict_proba(X[fresh]))
    model = CalibratedClassifier(GaussianNB(), "temperature").fit(X[fitted], Y[fitted])
    assert log_loss(Y[fresh], model.predict_proba(X[fresh])) < before - 0.05


def test_a_fitted_estimator_is_used_as_it_is():
    inner = GaussianNB().fit(X[:200], Y[:200])
    model = CalibratedClassifier(inner, cv="prefit").fit(X[200:], Y[200:])
    assert model.estimator_ is inner
    frozen = CalibratedClassifier(FrozenEstimator(inner), cv=2).fit(X[200:], Y[200:])
    np.testing.assert_allclose(frozen.predict_proba(X), model.predict_proba(X), atol=1e-7)
    with pytest.raises(ValueError, match=r"y must hold classes that the estimator has seen; got 7\."):
        CalibratedClassifier(inner, cv="prefit").fit(X[:9], np.full(9, 7))
    with pytest.raises(ValueError, match="not fitted"):
        CalibratedClassifier(GaussianNB(), cv="prefit").fit(X, Y)


def featureless():
    return [name for name in CALIBRATORS if not CALIBRATORS.entry(name).facts.get("needs_features")]


@pytest.mark.parametrize("method", featureless())
@pytest.mark.parametrize("target", [Y, BINARY], ids=["three", "two"])
def test_every_method_without_features_is_accepted(method, target):
    model = CalibratedClassifier(FrozenEstimator(GaussianNB().fit(X[:150], target[:150])), method, cv=2)
    probs = model.fit(X[150:], target[150:]).predict_proba(X)
    np.testing.assert_allclose(probs.sum(1), 1)
    assert probs.min() >= 0
    assert model.calibrator_.name == method


def test_auto_chooses_and_says_why():
    model = CalibratedClassifier(GaussianNB(), "auto").fit(X, Y)
    assert model.calibrator_ is model.choice_.calibrator
    assert model.predict_proba(X).shape == (400, 3)


def test_wrong_methods_are_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"^method must be 'auto' or one of .*temperature.*; got 'heat'\.$"):
        CalibratedClassifier(method="heat").fit(X, Y)
    needy = [name for name in CALIBRATORS if name not in featureless()]
    for name in needy:
        with pytest.raises(ValueError, match=r"^method must need no features, which an estimator does not give"):
            CalibratedClassifier(method=name).fit(X, Y)


def test_a_class_that_a_fold_lacks_does_not_stop_it():
    rare = np.array(["common", "other", "rare"])[Y]
    rare[(rare == "rare") & (np.arange(400) != np.flatnonzero(Y == 2)[0])] = "common"
    model = CalibratedClassifier(LogisticRegression(), cv=5).fit(X, rare)
    assert model.classes_.tolist() == ["common", "other", "rare"]
    assert model.calibrator_.fitted.n == 399  # the one row of the rare class was held out from a copy without it
    assert model.predict_proba(X).shape == (400, 3)
    assert set(model.predict(X)) <= set(rare)


def test_a_class_not_seen_gets_almost_nothing_in_the_right_column():
    from calibrant.integrations.sklearn import _scores

    for inner in (LogisticRegression(), GaussianNB()):
        copy = inner.fit(X[Y != 1], Y[Y != 1])
        probs = softmax(_scores(copy, X, np.array([0, 1, 2])).numpy(), 1)
        np.testing.assert_allclose(probs[:, [0, 2]], copy.predict_proba(X), atol=1e-9)
        assert probs[:, 1].max() <= 1.1e-12


def test_folds_that_hold_out_whole_classes_are_refused():
    splits = [(np.flatnonzero(Y != k), np.flatnonzero(Y == k)) for k in range(3)]  # noqa: SIM300
    with pytest.raises(ValueError, match="cv must hold out rows of classes that the other rows have"):
        CalibratedClassifier(GaussianNB(), cv=splits).fit(X, Y)


def test_one_class_is_refused():
    with pytest.raises(ValueError, match=r"y must hold at least two classes; got one class\."):
        CalibratedClassifier().fit(X, np.zeros(400))


class Pairs(ClassifierMixin, BaseEstimator):
    """A score for each pair of classes, as a one-against-one machine gives."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def decision_function(self, X):
        return np.zeros((len(X), 6))


def test_scores_that_are_not_one_a_class_are_refused():
    with pytest.raises(ValueError, match=r"estimator must give one score for each of 3 classes; got 6 a row\."):
        CalibratedClassifier(Pairs()).fit(X, Y)


def test_it_works_where_scikit_learn_puts_it():
    inside = make_pipeline(StandardScaler(), CalibratedClassifier(DecisionTreeClassifier(max_depth=4, random_state=0)))
    outside = CalibratedClassifier(make_pipeline(StandardScaler(), LogisticRegression()))
    assert cross_val_score(inside, X, Y, cv=3).mean() > 0.5
    assert cross_val_score(outside, X, Y, cv=3, scoring="neg_log_loss").mean() > -np.log(3)
    grid = {"method": ["temperature", "vector"], "estimator__var_smoothing": [1e-9, 1e-2]}
    search = GridSearchCV(CalibratedClassifier(GaussianNB()), grid, cv=3, scoring="neg_log_loss").fit(X, Y)
    assert search.best_params_["method"] in grid["method"]


def test_splitters_of_scikit_learn_are_taken():
    folds = list(GroupKFold(4).split(X, Y, groups=np.arange(400) // 10))
    assert CalibratedClassifier(GaussianNB(), cv=folds).fit(X, Y).calibrator_.fitted.n == 400


def test_a_copy_is_not_fitted_and_the_seed_decides_the_folds():
    model = CalibratedClassifier(GaussianNB(), "vector", cv=3, seed=7).fit(X, Y)
    again = clone(model)
    assert again.get_params()["seed"] == 7
    assert not hasattr(again, "calibrator_")
    np.testing.assert_array_equal(again.fit(X, Y).predict_proba(X), model.predict_proba(X))
    other = CalibratedClassifier(GaussianNB(), "vector", cv=3, seed=8).fit(X, Y)
    assert not np.array_equal(other.predict_proba(X), model.predict_proba(X))


def test_ten_digits_keep_their_accuracy():
    x, y = load_digits(return_X_y=True)
    half = len(x) // 2
    plain = GaussianNB(var_smoothing=1e-3).fit(x[:half], y[:half])
    model = CalibratedClassifier(GaussianNB(var_smoothing=1e-3)).fit(x[:half], y[:half])
    assert model.score(x[half:], y[half:]) == pytest.approx(plain.score(x[half:], y[half:]), abs=0.002)
    assert log_loss(y[half:], model.predict_proba(x[half:])) < log_loss(y[half:], plain.predict_proba(x[half:])) / 2


class Counted(SVC):
    """An SVC that counts how often it is asked for predictions."""

    predicted = 0

    def predict(self, X):
        type(self).predicted += 1
        return super().predict(X)


@pytest.mark.parametrize("cv", [3, "prefit"])
def test_a_row_by_itself_has_the_probabilities_it_has_among_others(cv):
    x, y = load_digits(return_X_y=True)
    svc = Counted().fit(x[:600], y[:600])
    model = CalibratedClassifier(svc, cv=cv).fit(x[600:1200], y[600:1200])
    at = model.estimator_
    odd = np.flatnonzero(at.decision_function(x).argmax(1) != at.predict(x))  # it predicts by votes of pairs
    assert len(odd) > 0
    asked = Counted.predicted
    together = model.predict_proba(x)
    for i in odd:
        np.testing.assert_allclose(model.predict_proba(x[i : i + 1]), together[i : i + 1], rtol=1e-9)
    assert Counted.predicted == asked  # the scores alone are needed


def test_scores_of_pairs_of_classes_are_refused():
    with pytest.raises(ValueError, match="decision_function_shape='ovr'"):
        CalibratedClassifier(SVC(decision_function_shape="ovo")).fit(*load_iris(return_X_y=True))
