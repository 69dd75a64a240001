"""Monte Carlo dropout: many passes of one network with dropout on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from calibrant.predictions.collect import device_of, evaluating, logits_of
from calibrant.predictions.fit_data import columns
from calibrant.predictions.types import Confidence
from calibrant.registry import TRUST
from calibrant.trust._machinery.sampling import CONFIDENCES, Average, Score, check_score, seeded
from calibrant.trust.predictor import Onlooker

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@TRUST.register(reads="inputs")
class McDropout(Onlooker):
    r"""Monte Carlo dropout: how sure the mean of many passes with dropout is.

    .. math:: 1 - \frac{H(\bar p)}{\log k}, \qquad \bar p = \frac1s \sum_{i=1}^{s} \mathrm{softmax}(z_i),
        \qquad H(p) = -\sum_k p_k \log p_k

    with :math:`z_i` the logits of pass i of ``passes``, each with other units dropped. ``average="logits"`` takes the
    softmax of the mean logits instead, as ConfidNet's comparison does. ``score="mutual_information"`` takes 1 less
    :math:`(H(\bar p) - \frac1s \sum_i H(p_i)) / \log k`, which sees only how far passes disagree; ``score="msp"`` takes
    :math:`\bar p` of the class that the classifier answers with dropout off, since that answer is judged.

    Only layers of torch's dropout family are switched on; dropout inside other layers (attention weights, recurrent
    layers) or called as a function stays off. All else is in eval mode: no statistics of batch normalisation move, and
    the mode of every layer and the random state are left as found. Every call starts from ``seed``, so an answer does
    not depend on the batches before it.

    It costs ``passes`` times the work, needs a network that was trained with dropout, and on such networks seldom ranks
    better than one pass does.

    Reference: Gal & Ghahramani, ICML 2016; average="logits": Corbière et al., NeurIPS 2019.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
        >>> trust = McDropout.fit(model, passes=20)
        >>> inputs = torch.ones(2, 4)
        >>> trust.confidence(inputs).shape, torch.equal(trust.confidence(inputs), trust.confidence(inputs))
        (torch.Size([2]), True)
    """

    def __init__(self, classifier: nn.Module, passes: int, average: Average, score: Score, seed: int) -> None:
        super().__init__(classifier)
        self.settings: dict[str, Any] = {"passes": passes, "average": average, "score": score, "seed": seed}

    @classmethod
    def fit(
        cls, model: nn.Module, *, passes: int = 50, average: Average = "probs", score: Score = "entropy", seed: int = 0
    ) -> "McDropout":
        """Take the classifier as it is; nothing is learned."""
        check_score(score, average)
        if passes < 2:
            raise ValueError(f"passes must be at least 2; got {passes}.")
        if not any(layer.p > 0 for layer in _dropouts(model)):
            raise ValueError(
                f"model must have a dropout layer (nn.Dropout and its kin, p > 0); {type(model).__name__} has none. "
                "Dropout called as a function cannot be switched on from outside."
            )
        return cls(model, passes, average, score, seed)

    def confidence(self, inputs: Any) -> Confidence:
        """Return the confidence of each row of a batch of the classifier's inputs."""
        model, seed, score = self.classifier, self.settings["seed"], self.settings["score"]
        with evaluating(model, device_of(model)), seeded(model, seed), _slow_attention(), torch.no_grad():
            answers = columns(logits_of(model, inputs)).argmax(1)
            for layer in _dropouts(model):
                layer.training = True  # `evaluating` puts it back
            passes = [columns(logits_of(model, inputs)) for _ in range(self.settings["passes"])]
            return CONFIDENCES[score](torch.stack(passes), answers, self.settings["average"])


def _dropouts(model: nn.Module) -> list[Any]:
    return [layer for layer in model.modules() if isinstance(layer, DROPOUTS)]


@contextmanager
def _slow_attention() -> Iterator[None]:
    """Switch off the fast path of torch's transformer layers in eval mode, which skips their dropout layers."""
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
