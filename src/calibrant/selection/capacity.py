"""The threshold of a fixed review capacity, with an exact bound on the error of the accepted rows."""

import math
from typing import Any

import numpy as np

from calibrant.metrics.binomial import upper_bound
from calibrant.predictions import scalars
from calibrant.predictions.fingerprints import digest, sample
from calibrant.records import count
from calibrant.selection.policy import Part, Policy
from calibrant.selection.reasons import promised
from calibrant.selection.thresholds import Cuts, read


def review(
    confidence: Any, correct: Any = None, *, capacity: float, delta: float = 0.05, score: str = "confidence"
) -> Policy:
    r"""Send the least confident share ``capacity`` of the rows to review, and bound the error of the others.

    With j rows to accept, :math:`j = \lfloor (1 - \text{capacity})\, n \rfloor`, the threshold is the score of the row
    after them, and the bound :math:`u` of the e errors among the m rows strictly above it solves

    .. math:: \Pr[\mathrm{Bin}(m, u) \le e] = \delta

    The rank is fixed before labels are seen, so nothing is searched and the bound is exact: the true error of the
    accepted rows is larger with probability at most delta. It is the policy's ``max_error``. Where the threshold falls
    among tied scores the whole block is reviewed, which is more than asked; the reason says how many. ``confidence``
    may be `Predictions`. What share new rows send to review varies: see ``coverage_interval``.

    Reference: Clopper & Pearson, Biometrika 1934.

    Example:
        >>> policy = review(torch.linspace(0, 1, 500), torch.ones(500, dtype=torch.bool), capacity=0.2)
        >>> policy.accepted, round(policy.max_error, 5)
        (400, 0.00746)
    """
    if not 0 <= scalars.real(capacity, "capacity") < 1:
        raise ValueError(f"capacity must lie in [0, 1), the share that can be reviewed; got {capacity:g}.")
    scalars.share(delta, "delta")
    rows = read(confidence, correct)
    cuts = Cuts.of(rows)
    wanted = math.floor((1 - capacity) * len(rows) + 1e-9)
    place = int(np.searchsorted(cuts.accepted, wanted, side="right")) - 1
    threshold = float(cuts.threshold[place]) if place >= 0 else float(rows.confidence.max())
    accepted, errors = (int(c[place]) if place >= 0 else 0 for c in (cuts.accepted, cuts.errors))
    bound = upper_bound(errors, accepted, delta)
    reason = promised(threshold, accepted, errors, bound, delta, score)
    if not accepted:
        reason = "Every row goes to review: the most confident rows are tied, and too many for the capacity."
    elif accepted < wanted:
        more = wanted - accepted
        reason += f" Ties send {count(more)} more row{'s' if more != 1 else ''} to review than asked."
    usable = threshold if accepted else None
    part = Part(usable, len(rows), accepted, errors, bound if accepted else None, reason)
    whole, some = digest(rows.hashed), sample(rows.hashed)
    return Policy(bound, delta, {"all": part}, "review", score=score, fingerprint=whole, sample=some)
