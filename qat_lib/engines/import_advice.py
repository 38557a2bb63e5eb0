"""Advice for ONNX graphs that a backend rejects."""

from __future__ import annotations

from pathlib import Path

from qat_lib.engines.onnx_graph import GraphSummary
from qat_lib.engines.onnxruntime import reference_session
from qat_lib.errors import BackendUnavailableError, EngineBuildError
from qat_lib.graph.roles import onnx_operators

_LOOPS = onnx_operators("loop")


def advise(onnx: Path, graph: GraphSummary, library: str) -> str:
    """Return a remedy for an ONNX file that ``library`` can't compile.

    The advice depends on whether ONNX Runtime accepts the file.

    Args:
        onnx: the ONNX file.
        graph: its summary.
        library: name of the library, for the text.
    """
    try:
        reference_session(onnx)
    except EngineBuildError as error:
        return f"{error} Verify the graph first (qatline verify)."
    except BackendUnavailableError:
        return "Verify the graph first (qatline verify)."
    right = f"The graph itself is right: ONNX Runtime takes it, and {library} does not."
    if any(operator in _LOOPS for _, operator in graph.order):
        return (
            f"{right} The graph steps through time in a Loop, which is how GRU, SimpleRNN, "
            "ConvLSTM, and layers with a mask are exported. Build with backend='onnxruntime', or "
            "make the layers with unroll=True and export again."
        )
    quantized = ", or leave the layer out of quantization" if graph.weights is not None else ""
    return (
        f"{right} Build with backend='onnxruntime'{quantized}, or replace the layer that is named."
    )
