"""Mixins of quantized modules: quantizers, class defaults, arguments.

The names are those of pytorch-quantization, underscores included, so that its custom modules work
after a change of their imports.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from torch import nn

from qat_lib.errors import SpecError
from qat_lib.torch.tensor_quant import QUANT_DESC_8BIT_PER_TENSOR, QuantDescriptor
from qat_lib.torch.tensor_quantizer import TensorQuantizer

_Class = TypeVar("_Class", bound="QuantInputMixin")


class QuantInputMixin:
    """Part of a module that quantizes its input."""

    default_quant_desc_input: ClassVar[QuantDescriptor] = QUANT_DESC_8BIT_PER_TENSOR
    _input_quantizer: TensorQuantizer

    @classmethod
    def set_default_quant_desc_input(cls, value: QuantDescriptor) -> None:
        """Set the input quantization of new modules of this class.

        Raises:
            SpecError: ``value`` is not a QuantDescriptor.
        """
        cls.default_quant_desc_input = _descriptor(value)

    def init_quantizer(self, quant_desc_input: QuantDescriptor) -> None:
        """Create the input quantizer; call it in ``__init__`` after the module's constructor."""
        self._input_quantizer = TensorQuantizer(_fake(quant_desc_input))

    @property
    def input_quantizer(self) -> TensorQuantizer:
        """The quantizer of the input."""
        return self._input_quantizer

    @classmethod
    def from_float(cls: type[_Class], module: Any, **descriptors: QuantDescriptor) -> _Class:
        """Return a quantized copy of a float module.

        The copy has the settings of the float module and shares its parameters and buffers.

        Args:
            module: a module of the float base class.
            **descriptors: ``quant_desc_input`` and, for modules with weights,
                ``quant_desc_weight``. Default: those of the class.
        """
        # __new__ without __init__: the constructor would allocate and initialize new parameters.
        quantized = cls.__new__(cls)
        for name, value in module.__dict__.items():
            # Copied containers: additions to one module must not appear in the other.
            own = isinstance(value, (dict, set, list))
            quantized.__dict__[name] = copy(value) if own else value
        quantized._add_quantizers(**descriptors)
        return quantized

    def _add_quantizers(self, **descriptors: QuantDescriptor) -> None:
        self.init_quantizer(pop_quant_desc_in_kwargs(type(self), input_only=True, **descriptors))


class QuantMixin(QuantInputMixin):
    """Part of a module that quantizes its input and its weight."""

    default_quant_desc_weight: ClassVar[QuantDescriptor] = QUANT_DESC_8BIT_PER_TENSOR
    _weight_quantizer: TensorQuantizer

    @classmethod
    def set_default_quant_desc_weight(cls, value: QuantDescriptor) -> None:
        """Set the weight quantization of new modules of this class.

        Raises:
            SpecError: ``value`` is not a QuantDescriptor.
        """
        cls.default_quant_desc_weight = _descriptor(value)

    def init_quantizer(  # type: ignore[override]
        self,
        quant_desc_input: QuantDescriptor,
        quant_desc_weight: QuantDescriptor,
        num_layers: int | None = None,
    ) -> None:
        """Create the quantizers; call it in ``__init__`` after the module's constructor.

        Args:
            quant_desc_input: quantization of the input.
            quant_desc_weight: quantization of the weight; signed weights exclude the least integer.
            num_layers: number of pairs of quantizers, in ``_input_quantizers`` and
                ``_weight_quantizers``. Default None: one, in ``_input_quantizer`` and
                ``_weight_quantizer``.
        """
        if num_layers is None:
            super().init_quantizer(quant_desc_input)
            self._weight_quantizer = self._quantizer_of_weight(quant_desc_weight)
            self._weight_quantizer.bind_weight(self)
            return
        self._input_quantizers = nn.ModuleList()
        self._weight_quantizers = nn.ModuleList()
        for _ in range(num_layers):
            self._input_quantizers.append(TensorQuantizer(_fake(quant_desc_input)))
            self._weight_quantizers.append(self._quantizer_of_weight(quant_desc_weight))
        # After the creation of all: quantized_weight searches the complete list.
        for quantizer in self._weight_quantizers:
            quantizer.bind_weight(self)

    @staticmethod
    def _quantizer_of_weight(descriptor: QuantDescriptor) -> TensorQuantizer:
        # Folding a batch norm with a negative factor flips signs, and -128 has no counterpart.
        return TensorQuantizer(replace(_fake(descriptor), narrow_range=not descriptor.unsigned))

    def quantized_weight(self, _quantizer: TensorQuantizer) -> Any:
        """Return the tensor of a weight quantizer, the module's ``weight``."""
        return getattr(self, "weight", None)

    @property
    def weight_quantizer(self) -> TensorQuantizer:
        """The quantizer of the weight."""
        return self._weight_quantizer

    def _add_quantizers(self, **descriptors: QuantDescriptor) -> None:
        self.init_quantizer(*pop_quant_desc_in_kwargs(type(self), False, **descriptors))


def pop_quant_desc_in_kwargs(quant_cls: Any, input_only: bool = False, **kwargs: Any) -> Any:
    """Return the descriptors among keyword arguments, or the defaults of a class.

    Args:
        quant_cls: class with default descriptors.
        input_only: whether to return the descriptor of the input only. Default False.
        **kwargs: ``quant_desc_input``, ``quant_desc_weight``.

    Returns:
        The descriptor of the input, or a tuple of the descriptors of input and weight.

    Raises:
        TypeError: a keyword is unknown.
    """
    quant_desc_input = kwargs.pop("quant_desc_input", quant_cls.default_quant_desc_input)
    found = [quant_desc_input]
    if not input_only:
        found.append(kwargs.pop("quant_desc_weight", quant_cls.default_quant_desc_weight))
    if kwargs:
        raise TypeError(f"Unused keys: {', '.join(kwargs)}.")
    return quant_desc_input if input_only else tuple(found)


def split_descriptors(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the descriptors among keyword arguments, and the other arguments."""
    descriptors = dict(kwargs)
    others = {}
    for name in kwargs:
        if name not in ("quant_desc_input", "quant_desc_weight"):
            others[name] = descriptors.pop(name)
    return descriptors, others


def _descriptor(value: Any) -> QuantDescriptor:
    if not isinstance(value, QuantDescriptor):
        raise SpecError(f"Expected a QuantDescriptor. Received: {value!r}.")
    return value


def _fake(descriptor: QuantDescriptor) -> QuantDescriptor:
    if not descriptor.fake_quant:
        raise SpecError(
            "Only fake quantization is supported in quantized modules. Received: fake_quant=False."
        )
    return descriptor
