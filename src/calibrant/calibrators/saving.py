"""A calibrator as one .safetensors file: what it holds, and how it becomes the calibrator again."""

from pathlib import Path

import torch

from calibrant.calibrators.calibrator import Calibrator, Fit
from calibrant.calibrators.probing import probe
from calibrant.io.sealed import Contents, Kind, write
from calibrant.registry import CALIBRATORS

PROBED = 1_000_000  # classes up to which what was loaded is tried on a row


def save(calibrator: Calibrator, path: str | Path) -> None:
    """Write the calibrator to a file, all of it or nothing: an older file stays until the new one is on the disk.

    Example:
        >>> import calibrant, tempfile
        >>> from calibrant.calibrators.temperature import Temperature
        >>> cal = Temperature.fit(torch.tensor([[4.0, 0.0]]).repeat(4, 1), torch.tensor([0, 0, 0, 1]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(cal, f"{folder}/cal.safetensors")
        ...     calibrant.load(f"{folder}/cal.safetensors").temperature == cal.temperature
        tensor(True)
    """
    contents = Contents(calibrator.name, calibrator.state_dict(), calibrator.settings, calibrator.fitted)
    write(contents, KIND, Path(path))


def _rebuilt(contents: Contents) -> Calibrator:
    """Build the calibrator and try it: what does not fit the method fails now, and not in production."""
    made: Calibrator = CALIBRATORS[contents.method](contents.state, contents.settings, contents.fit)
    if made.fitted.k <= PROBED:
        with torch.no_grad():
            out = made(*probe(made, 1))
        if not bool(out.isfinite().all()):
            raise ValueError("its numbers are not finite")
    return made


KIND = Kind("calibrant.calibrator", 1, "calibrator", Fit, _rebuilt)
