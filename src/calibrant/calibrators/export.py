"""Export of a calibrator to ONNX, checked against the module, or to a torch program; both run without Calibrant.

The graph takes float32 ``logits`` (n, k), and float32 ``features`` (n, d) where the method needs them, for any n, and
gives ``calibrated`` (n, k). It does not check its inputs: non-finite logits pass through, where the module raises.
"""

import contextlib
import copy
import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.functional import logsigmoid, softplus
from torch.overrides import TorchFunctionMode

from calibrant.io.atomic import write_whole
from calibrant.records import versions

CLOSE = 1e-5  # how far ONNX may be from the module, relative to values above 1,
LOST = 10  # or by how many times what float32 loses to float64 in that row
PROBES = 64  # random rows that a graph is checked on before it is written
NAMES = ("logits", "features")
ROWS = Dim("n", max=2**40)  # a bound, since older exporters stumble over a slice to the end of a longer tensor


@runtime_checkable
class Exportable(Protocol):
    """What an export needs of a calibrator: its name, probe rows and a call."""

    needs_features: bool

    @property
    def name(self) -> str:
        """The name in the registry."""

    def probe(self, n: int) -> tuple[Tensor, ...]:
        """Return n rows that it can be called with."""

    def __call__(self, logits: Tensor, features: Tensor | None = None, /) -> Tensor:
        """Calibrate logits."""

    def cpu(self) -> Any:
        """Move it to the CPU, as a module does."""


def to_program(calibrator: Exportable) -> ExportedProgram:
    """Return the calibrator as a torch program for any number of rows.

    Example:
        >>> from calibrant.calibrators.temperature import Temperature
        >>> cal = Temperature.fit(torch.tensor([[4.0, 0.0]]).repeat(4, 1), torch.tensor([0, 0, 0, 1]))
        >>> to_program(cal).module()(torch.tensor([[4.0, 0.0]])).softmax(1)
        tensor([[0.7500, 0.2500]])
    """
    example = calibrator.probe(3)
    with _exporting(calibrator):
        shapes = tuple({0: ROWS} for _ in example)
        return torch.export.export(_Nested(calibrator).eval(), example, dynamic_shapes=shapes, strict=False)


def to_onnx(calibrator: Exportable, path: str | Path, *, opset: int | None = None) -> None:
    """Write the calibrator as an ONNX graph; where onnxruntime is installed, only if it gives the same output.

    ``opset`` is the version of the operators; None takes the exporter's own.
    """
    model = _model(calibrator, opset)
    if importlib.util.find_spec("onnxruntime"):
        rows = calibrator.probe(PROBES)
        off = _difference(calibrator, model, rows)
        if not bool((off <= CLOSE + LOST * _lost(calibrator, rows)).all()):
            most = float(off.amax())
            raise ValueError(
                f"{calibrator.name} was not written: its ONNX graph differs from the module by {most:.3g}."
            )
    write_whole(model, Path(path))


def verify(calibrator: Exportable, path: str | Path, logits: Tensor, features: Tensor | None = None) -> float:
    """Return how far an ONNX file is from the calibrator on some rows: the largest difference of two outputs.

    Differences are relative where the calibrated logit is larger than 1: float32 has seven digits.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} does not exist or is not a file.")
    rows = (logits,) if features is None else (logits, features)
    off = _difference(calibrator, Path(path).read_bytes(), tuple(part.detach().cpu().float() for part in rows))
    return float(off.amax())


def _model(calibrator: Exportable, opset: int | None) -> bytes:
    onnx, _ = _package("onnx"), _package("onnxscript")
    program, names = to_program(calibrator), NAMES[: 1 + calibrator.needs_features]
    with _exporting(calibrator):
        made: Any = torch.onnx.export(
            program,
            dynamo=True,
            input_names=names,
            output_names=["calibrated"],
            opset_version=opset,
            dynamic_shapes=tuple({0: ROWS} for _ in names),
            verbose=False,
        )
    model = made.model_proto
    version = model.opset_import[0].version
    if opset not in (None, version):
        raise ValueError(f"opset must be one that the exporter can write; got {opset}, while {version} would do.")
    _tidy(model.graph)
    told = {"method": calibrator.name, "versions": versions(), "fitted": repr(calibrator)}
    onnx.helper.set_model_props(model, told)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _tidy(graph: Any) -> None:
    """Drop what the exporter notes of the machine it ran on (paths, stack traces), and call the number of rows n."""
    values = (*graph.input, *graph.output, *graph.value_info)
    for part in (graph, *values, *graph.node, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    rows = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for size in (size for value in values for size in value.type.tensor_type.shape.dim if size.dim_param == rows):
        size.dim_param = "n"


def _log_sigmoid(x: Tensor) -> Tensor:
    return -softplus(-x)


def _log_sum_exp(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:  # noqa: FBT001, FBT002  as torch has it
    top = x.amax(dim, keepdim=True)
    top = top.masked_fill(top.isinf(), 0.0)
    total = (x - top).exp().sum(dim, keepdim=True).log() + top
    return total if keepdim else total.squeeze(dim)


class _Exact(TorchFunctionMode):
    """Expand two functions that onnxruntime 1.31 computes wrongly.

    It takes the sigmoid of anything below -18 for 1e-8, and does not shift a log-sum-exp whose first term is -inf.
    """

    exact: ClassVar[dict[Any, Callable[..., Tensor]]] = {
        logsigmoid: _log_sigmoid,
        torch.logsumexp: _log_sum_exp,
        Tensor.logsumexp: _log_sum_exp,
    }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.exact.get(func, func)(*args, **(kwargs or {}))


class _Nested(nn.Module):
    """A calibrator whose buffers are called ``calibrator.mean``: older exporters take ``mean`` for the operator."""

    def __init__(self, calibrator: Exportable) -> None:
        super().__init__()
        self.calibrator = copy.deepcopy(calibrator).cpu()

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        with _Exact():
            return self.calibrator(logits, features)


def _difference(calibrator: Exportable, model: bytes, rows: tuple[Tensor, ...]) -> Tensor:
    """Return the largest difference in each row."""
    onnxruntime = _package("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (given,) = session.run(None, {name: part.numpy() for name, part in zip(NAMES, rows, strict=False)})
    return _apart(_run(calibrator, rows), torch.from_numpy(given))


def _lost(calibrator: Exportable, rows: tuple[Tensor, ...]) -> Tensor:
    return _apart(_run(calibrator, tuple(part.double() for part in rows)), _run(calibrator, rows).double())


def _run(calibrator: Exportable, rows: tuple[Tensor, ...]) -> Tensor:
    with torch.no_grad():
        return copy.deepcopy(calibrator).cpu()(*rows)


def _apart(wanted: Tensor, found: Tensor) -> Tensor:
    if found.shape != wanted.shape:
        return torch.full((1,), torch.inf)
    return ((found - wanted).abs() / wanted.abs().clamp(min=1.0)).amax(1)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(f"ONNX needs the package {name}; install calibrant[onnx].") from None


@contextlib.contextmanager
def _exporting(calibrator: Exportable) -> Iterator[None]:
    """Silence the exporter's deprecation and missing-package warnings; name the calibrator in an error."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        reason = str(root).strip().partition("\n")[0].rstrip(".:")
        raise ValueError(f"{calibrator.name} cannot be exported by torch {torch.__version__}: {reason}.") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
