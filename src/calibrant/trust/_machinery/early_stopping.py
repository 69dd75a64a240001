"""Which epoch of an oracle is kept."""

import copy
import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from calibrant.metrics.delong import paired_auroc
from calibrant.predictions.types import Confidence
from calibrant.trust.learning import SURE
from calibrant.trust.predictor import Onlooker


class Keeping:
    """The best weights so far by AUROC on validation rows; of an anchored oracle the first unless others surely are."""

    def __init__(self, oracle: Onlooker, validation: Iterable[Any], *, anchored: bool) -> None:
        self.oracle, self.validation, self.anchored = oracle, validation, anchored
        self.state: dict[str, Tensor] = {}
        self.start: Confidence | None = None
        self.best = -math.inf

    def looked(self) -> float:
        """Judge the validation rows, and keep the weights if they are the best."""
        judged = self.oracle.judge(self.validation)
        right = judged.correct.numpy()
        if right.all() or not right.any():
            raise ValueError("validation must hold answers that are right and answers that are wrong; got one kind.")
        first = judged.confidence if self.start is None else self.start
        found, start, spread = paired_auroc(judged.confidence.numpy(), first.numpy(), right)
        surely = not self.anchored or found - start > SURE * spread
        if self.start is None or (surely and found > self.best):
            self.best, self.state = found, copy.deepcopy(self.oracle.state_dict())
        self.start = first
        return found
