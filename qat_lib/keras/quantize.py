"""Quantization of a Keras model: plan, then apply."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import keras

from qat_lib.core.spec import LayerConfig, QuantizationSpec
from qat_lib.keras.apply.rebuild import apply_plan
from qat_lib.keras.quantizers import model_quantizers
from qat_lib.options import Cpu
from qat_lib.planner import plan_quantization

__all__ = ["LayerConfig", "QuantizationSpec", "apply_plan", "model_quantizers", "quantize_model"]

logger = logging.getLogger("qat_lib")


def quantize_model(
    model: Any,
    quantization_mode: str = "full",
    quantization_spec: QuantizationSpec | None = None,
    custom_qdq_cases: Sequence[Any] | Literal["auto"] | None = None,
    *,
    unsigned: bool = False,
    cpu: Cpu | None = None,
) -> Any:
    """Return a copy of a model with fake-quantized tensors and weights.

    Without cases, only the default table and the spec place quantizers, and residual connections,
    Concatenates and poolings are not quantized. The command line and the pipeline also quantize
    these, like ``custom_qdq_cases="auto"``.

    Args:
        model: a Functional or Sequential Keras model, also with nested models; it is not modified.
        quantization_mode: ``"full"`` (default) or ``"partial"``.
        quantization_spec: exceptions from the default, by layer.
        custom_qdq_cases: placement rules for patterns of layers; see
            ``qat_lib.CustomQDQInsertionCase``. ``"auto"`` uses ``qat_lib.TensorRTQDQCase``, also
            suitable for the other engines. None (default): no cases.
        unsigned: whether to use unsigned integers for non-negative tensors, with 255 steps instead
            of 127. Default False. OpenVINO and ONNX Runtime support them, TensorRT does not.
        cpu: kind of CPU for the engine, as in ``plan_quantization``. Default None: TensorRT, or a
            CPU with VNNI.

    Returns:
        An ordinary Keras model with the same weights, to compile, calibrate, fit, save and export.
        If ``model`` is compiled, the copy is compiled with the same settings and a new optimizer.

    Raises:
        SpecError: the mode, the spec or a case is wrong.
        UnsupportedModelError: the model is subclassed or not built, or a layer can't be copied.

    Examples:
        >>> import keras, qat_lib
        >>> x = keras.Input((8, 8, 3))
        >>> model = keras.Model(x, keras.layers.Conv2D(4, 3, name="conv")(x))
        >>> [layer.name for layer in qat_lib.quantize_model(model).layers[-2:]]
        ['quant_conv', 'conv']
    """
    plan = plan_quantization(
        model, quantization_mode, quantization_spec, custom_qdq_cases, unsigned=unsigned, cpu=cpu
    )
    quantized = apply_plan(model, plan)
    _compile_like(model, quantized)
    return quantized


def _compile_like(model: Any, quantized: Any) -> None:
    """Compile ``quantized`` from the compile configuration of ``model``."""
    if not getattr(model, "compiled", False):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns about lambdas, relevant only for files
            config = keras.saving.deserialize_keras_object(model.get_compile_config())
        quantized.compile(**config)
    # A custom loss without a configuration may raise anything; then the user must compile.
    except Exception as error:  # noqa: BLE001
        logger.info(
            "The quantized model is not compiled: the original's configuration can't be copied: %s",
            error,
        )
