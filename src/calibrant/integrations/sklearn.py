"""A scikit-learn meta-estimator that calibrates any classifier with any calibrator."""

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, check_cv
from sklearn.utils import _safe_indexing, column_or_1d, get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_is_fitted
from torch import Tensor

from calibrant.predictions.facts import PROB_ZERO
from calibrant.predictions.types import Array
from calibrant.registry import CALIBRATORS


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose probabilities are calibrated on held-out scores.

    ``method`` is the name of a calibrator that needs no features, or ``"auto"``, which selects one. With ``cv`` a
    number of folds (stratified, shuffled by ``seed``), a splitter or a list of splits, clones of the estimator give
    out-of-fold scores, one calibrator is fitted on all these scores, and the estimator itself on all rows. With
    ``cv="prefit"`` the estimator is used as it is, and ``fit`` must be given rows that it was not fitted on.

    Scores are those of ``decision_function`` (for two classes, the logit of the second), or the logarithm of
    ``predict_proba`` where there is none. A class missing from the training rows of a fold has probability 1e-12 there,
    and its rows are left out of the fold, since the final estimator does know the class.

    After ``fit``: ``estimator_``, ``calibrator_``, ``classes_``, and ``choice_`` if the method is ``"auto"``.

    A calibrator fitted on out-of-fold scores is slightly underconfident: the clones see fewer rows than the estimator.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> from sklearn.naive_bayes import GaussianNB
        >>> x, y = make_classification(600, n_redundant=10, random_state=0)
        >>> model = CalibratedClassifier(GaussianNB(), "temperature").fit(x, y)
        >>> bool(model.calibrator_.temperature > 2)  # naive Bayes takes repeated features for evidence
        True
        >>> model.predict_proba(x).shape
        (600, 2)
    """

    def __init__(self, estimator: Any = None, method: Any = "temperature", *, cv: Any = 5, seed: Any = 0) -> None:
        # scikit-learn requires that parameters are stored unchanged and validated in ``fit``
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.seed = seed

    def fit(self, X: Any, y: Any) -> "CalibratedClassifier":
        """Fit the estimator and its calibrator."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        X, y = indexable(X, y)
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        fit = self._method()
        estimator = LogisticRegression() if self.estimator is None else self.estimator
        prefit = isinstance(self.cv, str) and self.cv == "prefit"
        scores, labels = self._prefit(estimator, X, y) if prefit else self._held_out(estimator, X, y)
        self.calibrator_ = fit(scores, labels)
        self.estimator_ = estimator if prefit else clone(estimator).fit(X, y)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return the calibrated probabilities, one column for each of ``classes_``."""
        check_is_fitted(self)
        with torch.no_grad():
            return self.calibrator_(_scores(self.estimator_, X, self.classes_)).softmax(1).numpy()

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def _method(self) -> Any:
        if self.method == "auto":
            return self._choose
        if not isinstance(self.method, str) or self.method not in CALIBRATORS:
            raise ValueError(f"method must be 'auto' or one of {', '.join(CALIBRATORS)}; got {self.method!r}.")
        if CALIBRATORS.entry(self.method).facts.get("needs_features"):
            raise ValueError(f"method must need no features, which an estimator does not give; {self.method!r} does.")
        return CALIBRATORS[self.method].fit

    def _choose(self, scores: Tensor, labels: Tensor) -> Any:
        from calibrant.calibrators.autocalibrate import autocalibrate

        self.choice_ = autocalibrate(scores, labels, seed=self.seed)
        return self.choice_.calibrator

    def _prefit(self, estimator: Any, X: Any, y: Array) -> tuple[Tensor, Tensor]:
        check_is_fitted(estimator)
        self.classes_ = np.sort(estimator.classes_)
        strange = ~np.isin(y, self.classes_)
        if strange.any():
            raise ValueError(f"y must hold classes that the estimator has seen; got {y[strange].tolist()[0]!r}.")
        scores = _scores(estimator, X, self.classes_)
        _check_order(_disagreeing(estimator, X, scores, self.classes_))
        return scores, torch.from_numpy(np.searchsorted(self.classes_, y))

    def _held_out(self, estimator: Any, X: Any, y: Array) -> tuple[Tensor, Tensor]:
        """Return out-of-fold scores and their labels."""
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("y must hold at least two classes; got one class.")
        parts, disagreeing = [], []
        for train, test in self._splits(X, y):
            copy = clone(estimator).fit(_safe_indexing(X, train), y[train])
            known = test[np.isin(y[test], y[train])]
            if len(known):
                rows = _safe_indexing(X, known)
                parts.append((_scores(copy, rows, self.classes_), torch.from_numpy(labels[known])))
                disagreeing.append(_disagreeing(copy, rows, parts[-1][0], self.classes_))
        if not parts:
            raise ValueError("cv must hold out rows of classes that the other rows have; got none. Use fewer folds.")
        _check_order(np.concatenate(disagreeing))
        scores, truth = zip(*parts, strict=True)
        return torch.cat(scores), torch.cat(truth)

    def _splits(self, X: Any, y: Array) -> list[tuple[Array, Array]]:
        cv = check_cv(self.cv, y, classifier=True)
        if isinstance(self.cv, int) and isinstance(cv, StratifiedKFold):
            cv = StratifiedKFold(self.cv, shuffle=True, random_state=self.seed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The least populated class", UserWarning)  # a fold may lack a class
            return list(cv.split(X, y))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(LogisticRegression() if self.estimator is None else self.estimator).input_tags
        for name in ("sparse", "allow_nan", "pairwise", "string", "categorical"):
            setattr(tags.input_tags, name, getattr(inner, name))
        return tags


def _scores(estimator: Any, X: Any, classes: Array) -> Tensor:
    """Return (n, k) logits in the order of ``classes``; a class unknown to the estimator gets probability 1e-12."""
    if hasattr(estimator, "decision_function"):
        given = np.asarray(estimator.decision_function(X), dtype=np.float64)
    else:
        given = np.log(np.asarray(estimator.predict_proba(X), dtype=np.float64).clip(min=PROB_ZERO))
    if given.ndim == 1:
        given = np.stack([np.zeros_like(given), given], 1)
    seen = np.searchsorted(classes, estimator.classes_)
    if given.shape[1] != len(seen):
        raise ValueError(f"estimator must give one score for each of {len(seen)} classes; got {given.shape[1]} a row.")
    scores = np.repeat(given.max(1, keepdims=True) + np.log(PROB_ZERO), len(classes), 1)
    scores[:, seen] = given
    return torch.from_numpy(scores)


def _disagreeing(estimator: Any, X: Any, scores: Tensor, classes: Array) -> Array:
    """Return for each row whether the estimator predicts another class than the one of the largest score.

    Of two classes it may predict by a threshold of its own.
    """
    if len(classes) == 2:
        return np.zeros(len(scores), bool)
    return np.asarray(classes[scores.argmax(1).numpy()] != estimator.predict(X))


def _check_order(disagreeing: Array) -> None:
    """Refuse scores that are not those of the classes, in `fit` only.

    A few rows may disagree: an SVC predicts by votes of pairs, its scores only follow them.
    """
    if disagreeing.mean() > 0.5:
        raise ValueError(
            "estimator must give a score for each class, the largest for the one it predicts; it predicts others. "
            "An SVC needs decision_function_shape='ovr'."
        )
