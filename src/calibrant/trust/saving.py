"""A trust predictor as one .safetensors file: what it holds, and how it becomes the predictor again.

Only predictors of cached rows are kept so. One that looks at the classifier's inputs is made of whole networks.
"""

from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from calibrant.calibrators.saving import PROBED
from calibrant.io.sealed import Contents, Kind, write
from calibrant.registry import TRUST
from calibrant.trust.own_scores import own_scores
from calibrant.trust.predictor import TrustFit, TrustPredictor


def save(trust: TrustPredictor, path: str | Path) -> None:
    """Write the predictor to a file, all of it or nothing: an older file stays until the new one is on the disk.

    A trust score keeps every row it was fitted on, and so does its file.

    Example:
        >>> import calibrant, tempfile
        >>> from calibrant.trust.mcp import Mcp
        >>> trust = Mcp.fit(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(trust, f"{folder}/trust.safetensors")
        ...     calibrant.load(f"{folder}/trust.safetensors")
        Mcp: nothing was fitted; 2 rows x 2 classes, 1 wrong
    """
    write(Contents(trust.name, trust.state_dict(), trust.settings, trust.fitted), KIND, Path(path))


def _rebuilt(contents: Contents) -> TrustPredictor:
    """Build the predictor and try it: what does not fit the method fails now, and not in production."""
    entry = TRUST.entry(contents.method)
    if entry.facts["reads"] != "rows":
        raise ValueError(f"method must read rows; {entry.name} looks at the classifier's inputs")
    made: TrustPredictor = entry.method(contents.state, contents.settings, contents.fit)
    if made.fitted.k <= PROBED:
        confidence = _tried(made)
        if not bool(((confidence >= 0) & (confidence <= 1)).all()):
            raise ValueError("its confidences do not lie in [0, 1]")
    return made


def _tried(trust: TrustPredictor) -> Tensor:
    """Return the confidence of a row; features are as many as one of the predictor's tensors lets it accept.

    A tensor may be as wide as the features, or as the features beside the classifier's own scores.
    """
    logits = torch.linspace(-1.0, 1.0, trust.fitted.k)[None]
    with torch.no_grad():
        if not trust.needs_features:
            return trust(logits)
        sizes = {size for value in trust.buffers() if value.numel() for size in value.shape}
        beside = {size - own_scores(logits).shape[1] for size in sizes}
        for width in sorted(size for size in sizes | beside if size > 0):
            with suppress(ValueError, RuntimeError):
                return trust(logits, torch.zeros(1, width))
    raise ValueError("it accepts no number of features")


KIND = Kind("calibrant.trust", 1, "trust predictor", TrustFit, _rebuilt)
