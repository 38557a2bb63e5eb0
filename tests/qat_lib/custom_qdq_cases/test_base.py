"""Custom Q/DQ cases and the toolkit tutorials' claims.

Both in the model and in the ONNX graph.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import keras
import onnx
import pytest
from keras import layers

from qat_lib import (
    BNQDQCase,
    CustomQDQInsertionCase,
    EfficientNetQDQCase,
    InceptionQDQCase,
    MaxPoolQDQCase,
    MobileNetQDQCase,
    QuantizationSpec,
    ResidualConnectionQDQCase,
    ResNetV1QDQCase,
    ResNetV2QDQCase,
    TensorRTQDQCase,
    check_is_quantizable_by_layer_name,
    plan_quantization,
    quantize_model,
)
from qat_lib.keras.export import export_onnx


def residual_block(batch_norm: bool = True) -> keras.Model:
    """Return the tutorial's residual block.

    Relu, two convolutions with a Relu between, Add, Relu.
    """
    x = keras.Input((8, 8, 3), name="x")
    first = layers.ReLU(name="relu_1")(layers.Conv2D(4, 3, padding="same", name="conv_1")(x))
    y = layers.ReLU(name="relu_2")(layers.Conv2D(4, 3, padding="same", name="conv_2")(first))
    y = layers.Conv2D(4, 3, padding="same", name="conv_3")(y)
    if batch_norm:
        y = layers.BatchNormalization(name="bn_3")(y)
    y = layers.Add(name="add")([y, first])
    return keras.Model(x, layers.ReLU(name="relu_3")(y))


def quantized_inputs(
    model: keras.Model, *cases: Any, layer: str = "add", **options: Any
) -> set[int]:
    plan = plan_quantization(model, custom_qdq_cases=list(cases), **options)
    return {c.input for entry in plan.quantizers for c in entry.consumers if c.layer == layer}


class Graph:
    """The exported ONNX graph, by tensors."""

    def __init__(self, model: keras.Model, path: Path) -> None:
        export_onnx(model, path)
        self.nodes = list(onnx.load(path).graph.node)
        self.producers = {name: node for node in self.nodes for name in node.output}

    def readers(self, tensor: str) -> list[Any]:
        return [node for node in self.nodes if tensor in node.input]

    def only(self, op: str) -> Any:
        (node,) = [node for node in self.nodes if node.op_type == op]
        return node

    def sources(self, node: Any) -> list[str]:
        """Return what op makes each input of the node."""
        return [self.producers[name].op_type for name in node.input if name in self.producers]


def test_default_placement_leaves_the_add_alone(tmp_path: Path) -> None:
    model = residual_block()
    assert quantized_inputs(model) == set()
    graph = Graph(quantize_model(model), tmp_path / "model.onnx")
    assert "DequantizeLinear" not in graph.sources(graph.only("Add"))
    # Three convolutions read three quantized tensors: x, the first and the second Relu.
    assert Counter(node.op_type for node in graph.nodes)["QuantizeLinear"] == 3


def test_class_spec_quantizes_all_add_inputs(tmp_path: Path) -> None:
    model = residual_block()
    spec = QuantizationSpec()
    spec.add(name="Add", is_keras_class=True)
    assert quantized_inputs(model, quantization_spec=spec) == {0, 1}
    graph = Graph(quantize_model(model, quantization_spec=spec), tmp_path / "model.onnx")
    assert graph.sources(graph.only("Add")) == ["DequantizeLinear", "DequantizeLinear"]


@pytest.mark.parametrize("batch_norm", [True, False])
def test_case_quantizes_and_shares_only_the_residual(batch_norm: bool, tmp_path: Path) -> None:
    model = residual_block(batch_norm)
    assert quantized_inputs(model, ResNetV1QDQCase()) == {1}
    graph = Graph(
        quantize_model(model, custom_qdq_cases=[ResNetV1QDQCase()]), tmp_path / "model.onnx"
    )
    add = graph.only("Add")
    # No Q/DQ between Conv(-BN) and Add; the batch normalization is folded away.
    assert sorted(graph.sources(add)) == ["Conv", "DequantizeLinear"]
    (residual,) = [
        graph.producers[name]
        for name in add.input
        if graph.producers[name].op_type == "DequantizeLinear"
    ]
    quantize = graph.producers[residual.input[0]]
    assert quantize.op_type == "QuantizeLinear"
    relu = graph.producers[quantize.input[0]]
    assert relu.op_type == "Relu"
    # Both readers of the first Relu, the convolution and the Add, read the one pair.
    assert [node.op_type for node in graph.readers(relu.output[0])] == ["QuantizeLinear"]
    assert [node.op_type for node in graph.readers(quantize.output[0])] == ["DequantizeLinear"]
    assert sorted(node.op_type for node in graph.readers(residual.output[0])) == ["Add", "Conv"]
    assert Counter(node.op_type for node in graph.nodes)["QuantizeLinear"] == 3


def test_a_projection_leaves_one_convolution_branch_unquantized() -> None:
    x = keras.Input((8, 8, 3))
    y = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(x))
    shortcut = layers.BatchNormalization()(layers.Conv2D(4, 1)(x))
    model = keras.Model(x, layers.Add(name="add")([shortcut, y]))
    assert quantized_inputs(model, ResidualConnectionQDQCase()) == {0}


def test_add_of_no_convolution_gets_both_inputs() -> None:
    x = keras.Input((8, 8, 3))
    model = keras.Model(
        x, layers.Add(name="add")([layers.Activation("gelu")(x), layers.AveragePooling2D(1)(x)])
    )
    assert quantized_inputs(model, ResidualConnectionQDQCase()) == {0, 1}


def test_dropout_before_add_belongs_to_convolution_branch() -> None:
    """As EfficientNet and MobileNetV2 have it."""
    x = keras.Input((8, 8, 3))
    y = layers.BatchNormalization()(layers.Conv2D(3, 3, padding="same")(x))
    model = keras.Model(x, layers.Add(name="add")([layers.Dropout(0.2)(y), x]))
    for case in (MobileNetQDQCase(), EfficientNetQDQCase()):
        assert quantized_inputs(model, case) == {1}


def test_add_with_one_convolution_and_three_inputs() -> None:
    x = keras.Input((8, 8, 3))
    pool = layers.AveragePooling2D(1)(x)
    model = keras.Model(x, layers.Add(name="add")([x, layers.Conv2D(3, 1)(x), pool]))
    assert quantized_inputs(model, ResidualConnectionQDQCase()) == {0, 2}


def test_batch_normalization_without_convolution_before_it() -> None:
    x = keras.Input((8, 8, 3))
    y = layers.BatchNormalization(name="free")(x)
    y = layers.BatchNormalization(name="fused")(layers.Conv2D(4, 3)(y))
    model = keras.Model(x, y)
    for case in (BNQDQCase(), ResNetV2QDQCase()):
        assert quantized_inputs(model, case, layer="free") == {0}
        assert quantized_inputs(model, case, layer="fused") == set()


def test_max_pools() -> None:
    x = keras.Input((8, 8, 3))
    model = keras.Model(x, layers.MaxPooling2D(name="pool")(layers.Conv2D(4, 3)(x)))
    for case in (MaxPoolQDQCase(), ResNetV2QDQCase(), InceptionQDQCase()):
        assert quantized_inputs(model, case, layer="pool") == {0}
    assert quantized_inputs(model, ResNetV1QDQCase(), layer="pool") == set()


def test_squeeze_and_excite_gates_of_efficientnet() -> None:
    x = keras.Input((8, 8, 4))
    gate = layers.GlobalAveragePooling2D(keepdims=True)(x)
    gate = layers.Conv2D(4, 1, activation="sigmoid")(gate)
    model = keras.Model(x, layers.Multiply(name="gate")([x, gate]))
    assert quantized_inputs(model, EfficientNetQDQCase(), layer="gate") == {0, 1}
    assert quantized_inputs(model, MobileNetQDQCase(), layer="gate") == set()


CASES = [
    BNQDQCase,
    EfficientNetQDQCase,
    InceptionQDQCase,
    MaxPoolQDQCase,
    MobileNetQDQCase,
    ResidualConnectionQDQCase,
    ResNetV1QDQCase,
    ResNetV2QDQCase,
]


@pytest.mark.parametrize("case", CASES)
def test_case_leaves_user_named_layers_alone(case: type[CustomQDQInsertionCase]) -> None:
    model = residual_block()
    spec = QuantizationSpec().add("add", quantization_index=[0])
    assert quantized_inputs(model, case(), quantization_spec=spec) == {0}
    answer = case().case(model, spec)
    assert isinstance(answer, QuantizationSpec)
    assert answer is not spec
    assert "add" not in [entry.name for entry in answer.layers]
    assert len(spec) == 1


@pytest.mark.parametrize("case", CASES)
def test_a_case_says_what_it_does(case: type[CustomQDQInsertionCase]) -> None:
    assert len(case().info()) > 15


def test_the_helper() -> None:
    spec = QuantizationSpec().add("conv")
    assert not check_is_quantizable_by_layer_name(spec, "conv")
    assert check_is_quantizable_by_layer_name(spec, "other")
    assert check_is_quantizable_by_layer_name(None, "conv")


def test_equal_cases_have_equal_texts() -> None:
    assert repr(TensorRTQDQCase()) == "TensorRTQDQCase(float_outputs=False)"


def test_case_without_method_cannot_be_created() -> None:
    class Nothing(CustomQDQInsertionCase):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Nothing()  # type: ignore[abstract]


def test_the_published_case_runs_as_printed() -> None:
    import tensorflow as tf

    class MaxPoolQDQCase(CustomQDQInsertionCase):
        def __init__(self) -> None:
            super().__init__()

        def info(self) -> str:
            return "Enables quantization of MaxPool layers."

        def case(self, keras_model: tf.keras.Model, qspec: QuantizationSpec) -> QuantizationSpec:
            mp_qspec = QuantizationSpec()
            for layer in keras_model.layers:
                if isinstance(layer, tf.keras.layers.MaxPooling2D):  # noqa: SIM102
                    if check_is_quantizable_by_layer_name(qspec, layer.name):
                        mp_qspec.add(name=layer.name, quantize_input=True, quantize_weight=False)
            return mp_qspec

    x = keras.Input((8, 8, 3))
    model = keras.Model(x, layers.MaxPooling2D(name="pool")(x))
    assert quantized_inputs(model, MaxPoolQDQCase(), layer="pool") == {0}
    partial = plan_quantization(model, "partial", custom_qdq_cases=[MaxPoolQDQCase()])
    assert len(partial.quantizers) == 1
