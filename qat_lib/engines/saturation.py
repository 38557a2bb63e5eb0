"""Warn of a CPU whose INT8 kernels may overflow, above all on unsigned activations.

An x86 CPU without VNNI or AMX adds two products of an unsigned and a signed byte in 16 bits,
with saturation: 2 x 255 x 127 does not fit, 2 x 127 x 127 does (oneDNN, "Nuances of int8
Computations").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qat_lib.engines.onnx_graph import GraphSummary

_X86 = ("x86_64", "AMD64")
_WIDE = ("vnni", "amx_int8")


def is_narrow(device: Mapping[str, Any]) -> bool:
    """Return whether ``device`` is a CPU that adds INT8 products in 16 bits."""
    if device.get("architecture") not in _X86:
        return False
    flags = " ".join(device.get("flags", ()))
    return not any(wide in flags for wide in _WIDE)


def saturation_warnings(graph: GraphSummary, device: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what to warn of when ``graph`` runs on ``device``: one sentence, or nothing."""
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
    """Return the warning where such a CPU answers worse than ``usual`` on others.

    It is one sentence, or nothing.
    """
    if difference <= usual or not is_narrow(device):
        return ()
    return (
        f"{device.get('name')} has neither VNNI nor AMX, and the engine's answers to random input "
        f"differ from the ONNX graph's by {difference:.2g} of their spread. Check the accuracy on "
        "this machine, or build the FP32 engine.",
    )
