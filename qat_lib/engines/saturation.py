"""Warn of CPUs whose INT8 kernels may overflow.

Unsigned activations are affected above all. An x86 CPU without VNNI or AMX adds two products of an
unsigned and a signed byte in 16 bits, with saturation: 2 x 255 x 127 does not fit, 2 x 127 x 127
does (oneDNN, "Nuances of int8 Computations").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qat_lib.engines.onnx_graph import GraphSummary

_X86 = ("x86_64", "AMD64")
_WIDE = ("vnni", "amx_int8")


def is_narrow(device: Mapping[str, Any]) -> bool:
    """Return whether ``device`` is a CPU with 16-bit INT8 accumulation."""
    if device.get("architecture") not in _X86:
        return False
    flags = " ".join(device.get("flags", ()))
    return not any(wide in flags for wide in _WIDE)


def saturation_warnings(graph: GraphSummary, device: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the warning for ``graph`` on ``device``: one sentence or nothing."""
    if not graph.full_unsigned or not is_narrow(device):
        return ()
    return (
        f"{device.get('name')} has neither VNNI nor AMX: sums of {graph.full_unsigned} unsigned "
        "tensors may overflow. Check the accuracy on this machine, or quantize with unsigned=False "
        "(quantization.unsigned=never).",
    )


def difference_warnings(
    device: Mapping[str, Any], difference: float, usual: float
) -> tuple[str, ...]:
    """Return a warning if a narrow CPU's difference exceeds ``usual``.

    It is one sentence, or nothing. ``usual`` is the difference on other CPUs.
    """
    if difference <= usual or not is_narrow(device):
        return ()
    return (
        f"{device.get('name')} has neither VNNI nor AMX, and the engine's answers to random input "
        f"differ from the ONNX graph's by {difference:.2g} of their spread. Check the accuracy on "
        "this machine, or build the FP32 engine.",
    )
