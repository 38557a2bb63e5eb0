"""Advice for ONNX graphs that a backend refuses."""

from __future__ import annotations

from pathlib import Path

from qat_lib.engines.onnx_graph import GraphSummary
from qat_lib.engines.onnxruntime import reference_session
from qat_lib.errors import BackendUnavailableError, EngineBuildError
from qat_lib.graph.roles import onnx_operators

_LOOPS = onnx_operators("loop")


def advise(onnx: Path, graph: GraphSummary, library: str) -> str:
    """Return what to do where ``library`` can't compile ``onnx``.

    It depends on whether ONNX Runtime takes the file.

    Args:
        onnx: the ONNX file.
        graph: its summary.
        library: name of the library that refused it, for the text.
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
