"""A file -> what was saved in it: a calibrator or a trust predictor."""

from pathlib import Path

from calibrant.calibrators.calibrator import Calibrator
from calibrant.calibrators.saving import KIND as CALIBRATOR
from calibrant.io.sealed import read
from calibrant.trust.predictor import TrustPredictor
from calibrant.trust.saving import KIND as TRUST_PREDICTOR


def load(path: str | Path) -> Calibrator | TrustPredictor:
    """Read what `save` of a calibrator or of a trust predictor wrote; it gives the same output, to the last bit.

    What it is stands in the file. Whatever is wrong with the file is a ValueError of one sentence (FileNotFoundError if
    there is none), and nothing in it is ever executed.

    Example:
        >>> import tempfile
        >>> from calibrant.calibrators.identity import Identity
        >>> cal = Identity.fit(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cal.save(f"{folder}/cal.safetensors")
        ...     load(f"{folder}/cal.safetensors").name
        'identity'
    """
    found: Calibrator | TrustPredictor = read(Path(path), (CALIBRATOR, TRUST_PREDICTOR))
    return found
