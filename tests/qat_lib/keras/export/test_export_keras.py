"""Keras models through the whole export: every option, every kind of model."""

import json

import numpy as np
import onnx
import pytest

import qat_lib
from qat_lib.errors import ExportError
from qat_lib.export.metadata import Recorded
from qat_lib.onnx_view.metadata import read_metadata
from qat_lib.preprocessing import Preprocessing

keras = pytest.importorskip("keras")
layers = keras.layers


def operators(path):
    return [node.op_type for node in onnx.load(path).graph.node]


def test_the_exported_graph_is_the_plan(exported, plan, quantized, images):
    assert qat_lib.verify_onnx(exported, plan) == []
    assert qat_lib.verify_onnx(exported, plan.to_dict()) == []
    assert qat_lib.verify_onnx(exported) == []
    report = qat_lib.check_parity(quantized, exported, images)
    assert report.passed, report
    assert report.labels_equal + report.ties == report.samples == 24


def test_the_graph_is_what_tensorrt_likes(exported, plan):
    found = operators(exported)
    assert found.count("Transpose") == 1
    assert not {"Shape", "Pad", "BatchNormalization"} & set(found)
    assert found.count("Mul") == 1  # the gate, no piece of a BatchNormalization
    assert found.count("QuantizeLinear") == len(plan.by_kind("activation")) + len(
        plan.by_kind("internal")
    )
    proto = onnx.load(exported)
    made = {output: node for node in proto.graph.node for output in node.output}
    constants = {tensor.name for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type in ("Conv", "Gemm"):
            assert made[node.input[0]].op_type == "DequantizeLinear", node.name
            weight = made[node.input[1]]
            assert weight.op_type == "DequantizeLinear"
            assert weight.input[0] in constants
    assert [value.name for value in (*proto.graph.input, *proto.graph.output)] == ["image", "probs"]
    assert all("/" in node.name for node in proto.graph.node)
    assert len({node.name for node in proto.graph.node}) == len(proto.graph.node)


def test_the_int8_weights_are_keras_own(exported, quantized):
    tensors = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in onnx.load(exported).graph.initializer
    }
    layer = quantized.get_layer("quant_stem")
    kernel = np.asarray(layer.layer.kernel)
    scale = np.abs(kernel).max(axis=(0, 1, 2)) / np.float32(127)
    integers = np.rint(kernel / scale).transpose(3, 2, 0, 1)
    bn = quantized.get_layer("stem_bn")
    sign = np.sign(np.asarray(bn.gamma))[:, None, None, None]
    np.testing.assert_array_equal(tensors["stem_kernel_quantizer/integers"], integers * sign)


@pytest.mark.matrix_except("{'opset': 13}", "{'target': 'onnxruntime'*")
@pytest.mark.parametrize(
    "options",
    [
        {"opset": 13},
        {"opset": 18},
        {"opset": 21},
        {"weights": "qdq"},
        {"batch_size": 4},
        {"channels_first_input": True},
        {"target": "openvino"},
        {"target": "onnxruntime", "weights": "qdq", "batch_size": 2, "channels_first_input": True},
    ],
    ids=str,
)
def test_every_option_gives_the_same_answers(quantized, plan, images, tmp_path, options):
    path = tmp_path / "model.onnx"
    report = qat_lib.export_onnx(quantized, path, plan=plan, **options)
    assert qat_lib.verify_onnx(path, plan) == []
    parity = qat_lib.check_parity(quantized, path, images)
    assert parity.passed, parity
    proto = onnx.load(path)
    assert {entry.version for entry in proto.opset_import} == {report.opset}
    if options.get("channels_first_input"):
        assert "Transpose" not in operators(path)
    if options.get("weights") == "qdq":
        stored = {t.name: t.data_type for t in proto.graph.initializer}
        assert stored["stem_kernel_quantizer/weight"] == onnx.TensorProto.FLOAT
    dim = proto.graph.input[0].type.tensor_type.shape.dim[0]
    assert (dim.dim_value or dim.dim_param) == options.get("batch_size", "batch")


def test_float_precision_fp16_halves_and_agrees_within_halfs_rounding(
    quantized, plan, images, tmp_path
):
    path = tmp_path / "half.onnx"
    report = qat_lib.export_onnx(quantized, path, plan=plan, float_precision="fp16")
    assert report.opset == 19
    assert qat_lib.verify_onnx(path, plan) == []
    kinds = {t.data_type for t in onnx.load(path).graph.initializer}
    assert onnx.TensorProto.FLOAT not in kinds
    parity = qat_lib.check_parity(quantized, path, images)
    assert parity.largest_difference < 0.05


def test_raw_images_can_go_in(quantized, plan, tmp_path):
    preprocessing = Preprocessing(image_shape=(12, 12, 3), mean=(0.5,), std=(0.5,))
    path = tmp_path / "raw.onnx"
    qat_lib.export_onnx(
        quantized, path, plan=plan, preprocessing=preprocessing, embed_preprocessing=True
    )
    assert onnx.load(path).graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8
    raw = np.random.default_rng(0).integers(0, 256, (8, 12, 12, 3)).astype(np.uint8)
    assert qat_lib.check_parity(quantized, path, raw).passed


def test_a_plain_model_is_exported_too(network, images, tmp_path):
    path = tmp_path / "plain.onnx"
    report = qat_lib.export_onnx(network, path)
    assert report.quantizers == 0
    assert qat_lib.verify_onnx(path) == []
    parity = qat_lib.check_parity(network, path, images)
    assert parity.passed
    assert parity.largest_difference < 1e-5
    assert "BatchNormalization" not in operators(path)


def test_the_file_says_what_it_is(exported, plan):
    metadata = read_metadata(onnx.load(exported))
    assert metadata["plan_digest"] == plan.digest()
    assert json.loads(metadata["classes"]) == ["a", "b", "c", "d", "e"]
    assert metadata["target"] == "tensorrt"
    recorded = Recorded.from_json(metadata["quantizers"])
    assert {*recorded.activations, *(w.quantizer for w in recorded.weights.values())} == {
        entry.name for entry in plan.quantizers
    }
    assert Recorded.from_json(recorded.to_json()).activations == recorded.activations


def test_a_disabled_quantizer_is_not_in_the_graph(network, plan, images, tmp_path):
    model = qat_lib.apply_plan(network, plan)
    qat_lib.calibrate(model, images, method="max")
    name = plan.by_kind("weight")[0].name
    qat_lib.model_quantizers(model)[name].disable()
    path = tmp_path / "partly.onnx"
    qat_lib.export_onnx(model, path, plan=plan)
    assert not any(node.name.startswith(name) for node in onnx.load(path).graph.node)
    findings = qat_lib.verify_onnx(path, plan)
    assert [(f.code, f.severity, f.node) for f in findings if f.code == "Q01"] == [
        ("Q01", "info", name)
    ]


def test_shared_layers_nested_models_and_several_inputs_and_outputs(tmp_path):
    inner_input = keras.Input((6, 6, 2))
    inner = keras.Model(
        inner_input,
        layers.Conv2D(2, 3, padding="same", name="inner_conv")(inner_input),
        name="inner",
    )
    one, two = keras.Input((6, 6, 2), name="one"), keras.Input((6, 6, 2), name="two")
    shared = layers.Conv2D(2, 1, name="shared")
    both = layers.Add(name="both")([shared(inner(one)), shared(two)])
    model = keras.Model([one, two], [both, layers.GlobalMaxPooling2D(name="top")(both)])
    path = tmp_path / "many.onnx"
    qat_lib.export_onnx(model, path)
    proto = onnx.load(path)
    assert [v.name for v in proto.graph.input] == ["one", "two"]
    assert [v.name for v in proto.graph.output] == ["both", "top"]
    names = {node.name for node in proto.graph.node}
    assert {"inner/inner_conv/Conv", "shared/Conv", "shared/Conv_1"} <= names
    rng = np.random.default_rng(0)
    data = [rng.normal(size=(4, 6, 6, 2)).astype(np.float32) for _ in range(2)]
    assert qat_lib.check_parity(model, path, data).passed
    assert (
        qat_lib.check_parity(model, path, {"two": data[1], "one": data[0]}).largest_difference
        < 1e-5
    )
    with pytest.raises(ExportError, match="for the inputs"):
        qat_lib.check_parity(model, path, {"one": data[0], "three": data[1]})
    with pytest.raises(ExportError, match="as many samples"):
        qat_lib.check_parity(model, path, [data[0], data[1][:3]])


def test_inputs_in_a_dict_are_found_by_their_names(tmp_path):
    first, second = keras.Input((3,), name="z"), keras.Input((3,), name="a")
    model = keras.Model(
        {"z": first, "a": second}, layers.Dense(2)(layers.Subtract()([first, second]))
    )
    qat_lib.export_onnx(model, tmp_path / "dict.onnx")
    rng = np.random.default_rng(0)
    data = {name: rng.normal(size=(4, 3)).astype(np.float32) for name in ("z", "a")}
    for given in (data, dict(reversed(data.items())), iter([data])):
        report = qat_lib.check_parity(model, tmp_path / "dict.onnx", given)
        assert report.largest_difference < 1e-5


def test_sequential_grouped_gelu_and_layer_norm(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((8, 8, 4)),
            layers.Conv2D(8, 3, groups=2, padding="same"),
            layers.LayerNormalization(),
            layers.Dense(16, activation="gelu"),
            layers.UpSampling2D(2),
            layers.Cropping2D(1),
            layers.LeakyReLU(),
            layers.SeparableConv2D(4, 3),
            layers.Activation("hard_silu"),
            layers.Reshape((-1, 4)),
            layers.Permute((2, 1)),
        ]
    )
    path = tmp_path / "sequential.onnx"
    qat_lib.export_onnx(model, path)
    x = np.random.default_rng(0).normal(size=(3, 8, 8, 4)).astype(np.float32)
    report = qat_lib.check_parity(model, path, x)
    assert report.passed, report


@pytest.mark.parametrize("form", ["object", "dict", "path"])
def test_plan_digest_is_recorded_in_any_form(form, quantized, plan, tmp_path):
    given = {"object": plan, "dict": plan.to_dict(), "path": tmp_path / "plan.json"}[form]
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    qat_lib.export_onnx(quantized, tmp_path / "model.onnx", plan=given)
    assert read_metadata(onnx.load(tmp_path / "model.onnx"))["plan_digest"] == plan.digest()
