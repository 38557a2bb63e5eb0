"""quantize_model: plan, then apply."""

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

    Without cases only the default table and the spec place quantizers: residual connections,
    Concatenates and poolings stay as they are. The command line and the pipeline place them as
    well, as ``custom_qdq_cases="auto"`` does here.

    Args:
        model: a Functional or Sequential Keras model, nested ones included; it is not changed.
        quantization_mode: ``"full"`` (default) or ``"partial"``.
        quantization_spec: which layers to treat differently from the default.
        custom_qdq_cases: objects that decide by pattern; see
            ``qat_lib.CustomQDQInsertionCase``. ``"auto"``: ``qat_lib.TensorRTQDQCase``,
            which serves the other engines as well. None (default): no cases.
        unsigned: whether non-negative tensors get unsigned integers, with 255 steps in place of
            127. Default False. For OpenVINO and ONNX Runtime; TensorRT takes signed integers only.
        cpu: kind of CPU that will run the engine, as in ``plan_quantization``. Default None:
            TensorRT, or a CPU with VNNI.

    Returns:
        An ordinary Keras model with the same weights, to compile, calibrate, fit, save and export.
        If ``model`` is compiled, the copy is compiled likewise, with an optimizer of its own;
        compile it again to change that.

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
    """Compile ``quantized`` as ``model`` is, from its optimizer's and losses' configuration."""
    if not getattr(model, "compiled", False):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras's, about a lambda, is about files
            config = keras.saving.deserialize_keras_object(model.get_compile_config())
        quantized.compile(**config)
    # A loss without a configuration fails in many ways; compiling by hand is left.
    except Exception as error:  # noqa: BLE001
        logger.info(
            "The quantized model is not compiled: the original's configuration can't be copied: %s",
            error,
        )
