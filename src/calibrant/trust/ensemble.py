"""Deep ensembles: the confidence of several networks in the answer of one."""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from calibrant.predictions.collect import device_of, evaluating, logits_of
from calibrant.predictions.fit_data import columns
from calibrant.predictions.types import Confidence
from calibrant.registry import TRUST
from calibrant.trust._machinery.sampling import CONFIDENCES, Score
from calibrant.trust.predictor import Onlooker


@TRUST.register(reads="inputs")
class Ensemble(Onlooker):
    r"""Deep ensemble: the confidence of several networks together in one network's answer.

    .. math:: \bar p_{\hat y}, \qquad \bar p = \frac1s \sum_{i=1}^{s} \mathrm{softmax}(z_i), \qquad
        \hat y = \arg\max_k z_{1k}

    with :math:`z_i` the logits of member i. The first member is the classifier whose answers :math:`\hat y` are judged.
    ``score="msp"`` is the mean probability of that answer and not the largest mean probability: where the others
    outvote the classifier, the largest would be their confidence in another answer. ``score="entropy"`` is
    :math:`1 - H(\bar p) / \log k` with :math:`H(p) = -\sum_k p_k \log p_k`, and ``score="mutual_information"`` is 1
    less :math:`(H(\bar p) - \frac1s \sum_i H(p_i)) / \log k`; neither knows which answer is judged.

    Members are networks of the same task, trained apart (another seed is enough), on one device. They run in eval mode
    and are left as found. The cost is that of training and running s networks, and whoever has them would rather answer
    with their mean: this judges one of them.

    Reference: Lakshminarayanan, Pritzel & Blundell, NeurIPS 2017.

    Example:
        >>> models = [torch.nn.Linear(4, 3) for _ in range(5)]
        >>> trust = Ensemble.fit(models)
        >>> bool((trust.confidence(torch.ones(2, 4)) <= 1).all()), trust.classifier is models[0]
        (True, True)
    """

    def __init__(self, members: tuple[nn.Module, ...], score: Score) -> None:
        super().__init__(members[0])
        self._members = members  # a tuple, so that they are not submodules
        self.settings: dict[str, Any] = {"score": score, "members": len(members)}

    @classmethod
    def fit(cls, models: Iterable[nn.Module], *, score: Score = "msp") -> "Ensemble":
        """Take the members as they are, the classifier first; nothing is learned."""
        members = tuple(models)
        if len(members) < 2:
            raise ValueError(f"models must be at least 2, the classifier first; got {len(members)}.")
        if len({id(member) for member in members}) < len(members):
            raise ValueError("models must be different ones; one of them is there twice, and would agree with itself.")
        places = sorted({str(device_of(member)) for member in members})
        if len(places) > 1:
            raise ValueError(f"models must be on one device; got {', '.join(places)}. Call model.to(device).")
        return cls(members, score)

    @property
    def members(self) -> tuple[nn.Module, ...]:
        """The networks, the classifier first."""
        return self._members

    def confidence(self, inputs: Any) -> Confidence:
        """Return the confidence of each row of a batch of the classifier's inputs."""
        said = []
        with ExitStack() as stack, torch.no_grad():
            for member in self.members:
                stack.enter_context(evaluating(member, device_of(member)))
                said.append(columns(logits_of(member, inputs)))
        shapes = sorted({tuple(logits.shape) for logits in said})
        if len(shapes) > 1:
            raise ValueError(f"models must return logits of one shape; got {', '.join(map(str, shapes))}.")
        return CONFIDENCES[self.settings["score"]](torch.stack(said), said[0].argmax(1), "probs")
