"""Traits of an operation for the planner, independent of the framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from qat_lib.graph.roles import Role

Weights = Mapping[str, tuple[int, ...] | None]
"""Names of weights with their per-channel axes; None = one range."""
WIDE_WINDOW = 16
"""Least number of values in a wide pooling window.

A percentile of 99.99 costs the maxima of 4 values nothing, of 16 values 3 dB of the signal-to-noise
ratio (normal and Laplace distributions), of 576 values 17 to 21 dB."""


def _no_weights() -> Weights:
    return {}


@dataclass(frozen=True, kw_only=True)
class Support:
    """Quantizable parts of an operation and their defaults.

    Attributes:
        quantize_input: whether the inputs are quantized by default.
        quantize_weight: whether the weights are quantized by default.
        plan_weights: returns the quantizable weights. Default: no weights.
        internal: names of the inner tensors that are quantized together with the inputs.
        pairs: axis of a weight that counts the input channels, because a CPU without VNNI adds two
            of their products in 16 bits: the ``"last"`` or the ``"first"`` axis without ranges per
            channel; ``"unknown"`` if later steps reorder the channels; None = products of different
            channels are not added (depthwise).
        channels: number of input channels of a convolution without groups; None = unknown, or
            another operation.
        on_vnni: whether inputs and weights are quantized by default for CPUs with VNNI even so.
    """

    quantize_input: bool = False
    quantize_weight: bool = False
    plan_weights: Callable[[], Weights] = _no_weights
    internal: tuple[str, ...] = ()
    pairs: Literal["last", "first", "unknown"] | None = "last"
    channels: int | None = None
    on_vnni: bool = False

    def is_default(self, cpu: str | None) -> bool:
        """Return whether the inputs are quantized by default for a kind of CPU.

        Without VNNI, convolutions of 2 to 4 channels (images) stay in float. Their channels are
        correlated, so that room for pairs costs a whole bit in the layer that all others read, and
        sums do saturate without it. Kernels pad the channels to blocks, so INT8 saves no time.
        """
        is_image = self.channels is not None and 1 < self.channels <= 4
        if self.on_vnni and cpu == "vnni":
            return True
        return self.quantize_input and not (cpu == "avx2" and is_image)


def is_fast_transposed(
    window: Sequence[int], steps: Sequence[int], dilation: Sequence[int], groups: int
) -> bool:
    """Return whether CPUs with VNNI compute a transposed convolution faster in INT8.

    In OpenVINO 2026.4, those with windows of 2 to 4 and steps of 1 or 2 are 1.17 to 1.22 times as
    fast as in FP32 (geometric mean of 144). With groups or steps of 4 there is no INT8 kernel, and
    with steps of 3 or windows of 5 some kernels without AMX are wrong.
    """
    return groups == 1 and max(window) <= 4 and max(steps) <= 2 and max(dilation) == 1


@dataclass(frozen=True, kw_only=True)
class ExistingQuantizers:
    """Quantizers of an operation before planning.

    Attributes:
        inputs: numbers of the inputs quantized as whole tensors.
        weights: whether weights are quantized.
        quantizer: the quantizer, if the operation is one itself; it has ``num_bits``, ``unsigned``,
            ``calibrator`` and ``range_policy``.
    """

    inputs: tuple[int, ...] = ()
    weights: bool = False
    quantizer: Any = None


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Properties of an operation as configured in the model.

    Attributes:
        class_name: name of the class or function.
        classes: classes by which an entry of a spec can refer to the operation: its class and base
            classes, or names.
        kind: name in the table of roles; that of the Keras layer if there is one.
        roles: roles from the table, except those ruled out by the configuration.
        activation: name of the activation function, such as ``"relu6"``; None for other operations.
        own_activation: activation function that a weighted operation applies itself.
        is_input: whether the operation is an input of the model.
        is_layer: whether the operation is a layer or module rather than a function.
        support: quantizable parts; None = not supported.
        existing: existing quantizers; None = none.
        inside: names of weighted layers inside that run in float with the operation.
        obstacle: reason against quantization, in words; empty if there is none.
    """

    class_name: str
    classes: tuple[Any, ...] = ()
    kind: str = ""
    roles: frozenset[Role] = frozenset()
    activation: str | None = None
    own_activation: str | None = None
    is_input: bool = False
    is_layer: bool = True
    support: Support | None = None
    existing: ExistingQuantizers | None = None
    inside: tuple[str, ...] = ()
    obstacle: str = ""

    @property
    def is_identity(self) -> bool:
        """Whether the operation returns its one input unchanged at inference."""
        return "identity" in self.roles

    @property
    def is_concatenate(self) -> bool:
        """Whether the operation joins tensors, and can be quantized."""
        return self.kind == "Concatenate" and self.support is not None

    @property
    def preserves_range(self) -> bool:
        """Whether each output element is an element of the only input, or zero."""
        return "range preserving" in self.roles

    @property
    def is_weighted(self) -> bool:
        """Whether a kernel with weights computes the output: convolution, Dense, attention."""
        return "weighted" in self.roles or "attention" in self.roles

    @property
    def quantizer(self) -> Any:
        """The quantizer itself; None for other operations."""
        return None if self.existing is None else self.existing.quantizer

    @property
    def is_quantizer(self) -> bool:
        """Whether the operation is a quantizer."""
        return self.quantizer is not None

    @property
    def is_wrapped(self) -> bool:
        """Whether the operation is a layer or module that has been quantized before."""
        return self.existing is not None and self.quantizer is None

    @property
    def quantized_inputs(self) -> tuple[int, ...]:
        """Numbers of the inputs that are quantized already, as whole tensors."""
        return () if self.existing is None else self.existing.inputs

    def weights(self) -> Weights:
        """Return the quantizable weights with their per-channel axes."""
        return {} if self.support is None else self.support.plan_weights()
