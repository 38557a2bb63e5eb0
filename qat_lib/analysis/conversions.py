"""Conversion kernels: changes of precision or scale between two kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qat_lib.analysis.flow import Flow
from qat_lib.analysis.kernels import Kernel, KernelKind, KernelPrecision
from qat_lib.analysis.reads import Read, Scale

#: Kind, input precision and output precision of a conversion, by its reason.
_CONVERSIONS: dict[str, tuple[KernelKind, KernelPrecision, KernelPrecision]] = {
    "quantize": ("reformat", "float", "int8"),
    "requantize": ("requantize", "int8", "int8"),
    "dequantize": ("reformat", "int8", "float"),
}


def find_conversions(
    flow: Flow, kernel_of: Mapping[int, Kernel], written: Mapping[str, Scale], dequantized: set[int]
) -> Iterator[Kernel]:
    """Yield the kernels that only change a precision or a scale.

    Args:
        flow: the propagated flow.
        kernel_of: the kernels that compute, by node index.
        written: scales of the values written as INT8.
        dequantized: ids of the reads that always need a separate dequantize kernel.
    """
    for value in flow.values:
        if flow.graph.is_constant(value):
            continue
        yield from _rescales(value, flow, written, kernel_of)
        given = written.get(value)
        arrives_int8 = flow.graph.dtype(value) == "int8"  # behind an input or a Cast
        # Readers with equal scales share one conversion of the value.
        seen: set[tuple[str, Scale]] = set()
        for read in flow.readers(value):
            if _is_inside(flow, kernel_of, read):
                continue
            steps = _entry_steps(read, given, arrives_int8)
            if read.scale is not None and (
                id(read) in dequantized or _reads_float(kernel_of, read)
            ):
                steps.append(("dequantize", read.scale))
            for step in steps:
                if step not in seen:
                    seen.add(step)
                    yield _conversion(read, step[0])


def _conversion(read: Read, reason: str) -> Kernel:
    kind, reads, writes = _CONVERSIONS[reason]
    name = read.quantizers[0] if read.quantizers else read.value
    return Kernel(
        kind=kind, values=(read.value,), reads=reads, writes=writes, reason=reason, name=name
    )


def _is_inside(flow: Flow, kernel_of: Mapping[int, Kernel], read: Read) -> bool:
    """Return whether one kernel both computes and reads a value."""
    producer = flow.graph.producer(read.value)
    if producer is None or read.node is None:
        return False
    kernel = kernel_of.get(producer.index)
    return kernel is not None and kernel is kernel_of.get(read.node.index)


def _rescales(
    value: str, flow: Flow, written: Mapping[str, Scale], kernel_of: Mapping[int, Kernel]
) -> Iterator[Kernel]:
    """Yield the kernels that rescale Concat inputs to the output's scale."""
    for read in flow.readers(value):
        kernel = kernel_of.get(read.node.index) if read.node is not None else None
        if kernel is None or kernel.kind != "concat" or kernel.reads == "float":
            continue
        if read.scale != written.get(kernel.values[0]):
            yield Kernel(
                kind="requantize",
                values=(value,),
                reads="int8",
                writes="int8",
                reason="rescale",
                name=value,
            )


def _reads_float(kernel_of: Mapping[int, Kernel], read: Read) -> bool:
    kernel = kernel_of.get(read.node.index) if read.node is not None else None
    return kernel is None or kernel.reads == "float"


def _entry_steps(read: Read, given: Scale | None, arrives_int8: bool) -> list[tuple[str, Scale]]:
    """Return the conversions from a tensor's scale ``given`` to the scale of a read."""
    if read.entry is None:
        return []
    # A chain of different scales requantizes step by step.
    steps = [("requantize", scale) for scale in read.explicit[1:]]
    if given is None and not arrives_int8:
        return [("quantize", read.entry), *steps]
    if given is not None and given != read.entry:
        return [("requantize", read.entry), *steps]
    return steps
