"""Keras models through the whole export: every option, verification of the file, parity with Keras."""

import json
import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import qat_lib
from qat_lib.errors import ExportError, PlanError, UnsupportedModelError, VerificationError
from qat_lib.export.metadata import Recorded
from qat_lib.onnx_view.metadata import read_metadata
from qat_lib.preprocessing import Preprocessing

keras = pytest.importorskip("keras")
layers = keras.layers


def build_network():
    """Return a network with all that the passes are about: pads, depthwise, transposed, gates, branches, flatten."""
    image = keras.Input((12, 12, 3), name="image")
    x = layers.ZeroPadding2D(1, name="pad")(image)
    x = layers.Conv2D(8, 3, strides=2, use_bias=False, name="stem")(x)
    x = layers.ReLU(name="stem_relu")(layers.BatchNormalization(name="stem_bn")(x))
    skip = layers.MaxPooling2D(2, name="pool")(x)
    x = layers.Conv2D(8, 3, padding="same", name="main")(skip)
    x = layers.BatchNormalization(scale=False, name="main_bn")(x)
    x = layers.ReLU(name="sum_relu")(layers.Add(name="sum")([x, skip]))
    x = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, name="depthwise")(x)
    x = layers.BatchNormalization(center=False, name="depthwise_bn")(x)
    gate = layers.GlobalAveragePooling2D(keepdims=True, name="squeeze")(x)
    gate = layers.Conv2D(16, 1, activation="sigmoid", name="excite")(gate)
    x = layers.Multiply(name="gate")([x, gate])
    x = layers.Conv2DTranspose(4, 2, strides=2, name="up")(x)
    x = layers.Concatenate(name="concat")(
        [x, layers.AveragePooling2D(3, strides=1, padding="same", name="blur")(x)]
    )
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dropout(0.5, name="drop")(x)
    x = layers.BatchNormalization(name="dense_bn")(layers.Dense(16, name="dense")(x))
    return keras.Model(
        image, layers.Dense(5, activation="softmax", name="probs")(x), name="network"
    )


def stir(model, rng):
    """Give BatchNormalization layers statistics of their own, with negative and zero gammas."""
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            n = layer.moving_mean.shape[0]
            layer.moving_mean.assign(rng.normal(0, 0.2, n))
            layer.moving_variance.assign(rng.uniform(0.5, 1.5, n))
            if layer.scale:
                layer.gamma.assign(
                    np.where(
                        np.arange(n) == 1, 0, rng.uniform(0.5, 1.5, n) * rng.choice([1, -1], n)
                    )
                )
            if layer.center:
                layer.beta.assign(rng.normal(0, 0.2, n))


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(3).uniform(-1, 1, (24, 12, 12, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def network():
    keras.utils.set_random_seed(0)
    model = build_network()
    stir(model, np.random.default_rng(4))
    return model


@pytest.fixture(scope="module")
def plan(network):
    return qat_lib.plan_quantization(network, custom_qdq_cases=[qat_lib.TensorRTQDQCase()])


@pytest.fixture(scope="module")
def quantized(network, plan, images):
    model = qat_lib.apply_plan(network, plan)
    qat_lib.calibrate(model, images, method="max")
    return model


@pytest.fixture(scope="module")
def exported(quantized, plan, tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "network.onnx"
    qat_lib.export_onnx(quantized, path, plan=plan, metadata={"classes": ["a", "b", "c", "d", "e"]})
    return path


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


def test_layer_by_layer_comparison_names_where_a_difference_starts(
    exported, quantized, images, tmp_path
):
    report = qat_lib.check_parity(quantized, exported, images[:8], layers=True)
    assert {"stem_bn", "gate", "quant_probs"} <= {entry.layer for entry in report.layers}
    proto = onnx.load(exported)
    for tensor in proto.graph.initializer:
        if tensor.name == "quant_depthwise/bias":
            array = onnx.numpy_helper.to_array(tensor) + 0.5
            tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float32), tensor.name))
    broken = tmp_path / "broken.onnx"
    onnx.save(proto, broken)
    report = qat_lib.check_parity(quantized, broken, images[:8], layers=True)
    assert report.first_difference(0.05).layer == "depthwise_bn"
    assert report.first_difference(0.05).tensor == "quant_depthwise/Conv:0"


@pytest.mark.parametrize(
    "options",
    [
        {"opset": 13},
        {"opset": 18},
        {"opset": 21},
        {"weights": "qdq"},
        {"batch": 4},
        {"channels_first_input": True},
        {"target": "openvino"},
        {"target": "onnxruntime", "weights": "qdq", "batch": 2, "channels_first_input": True},
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
    assert (dim.dim_value or dim.dim_param) == options.get("batch", "batch")


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


def subclassed():
    class Custom(keras.Model):
        def call(self, x):
            return x

    model = Custom()
    model(np.zeros((1, 2), np.float32))
    return model


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (subclassed, {}, UnsupportedModelError, "Functional or Sequential"),
        (lambda: keras.Sequential([layers.Dense(2)]), {}, UnsupportedModelError, "built model"),
        (
            lambda: keras.Sequential([keras.Input((2,)), layers.Dense(2)]),
            {"opset": 12},
            ExportError,
            "opset from 13",
        ),
        (
            lambda: keras.Sequential([keras.Input((2,)), layers.Dense(2)]),
            {"opset": 99},
            ExportError,
            "opset from 13",
        ),
        (
            lambda: keras.Sequential([keras.Input((2,)), layers.Dense(2)]),
            {"weights": "int4"},
            ExportError,
            "weights",
        ),
        (
            lambda: keras.Sequential([keras.Input((2,)), layers.Dense(2)]),
            {"target": "tpu"},
            ExportError,
            "target",
        ),
        (
            lambda: keras.Sequential([keras.Input((2,)), layers.Dense(2)]),
            {"batch": 0},
            ExportError,
            "batch size",
        ),
        (
            lambda: keras.Sequential([keras.Input((2,)), layers.Dense(2)]),
            {"embed_preprocessing": True},
            ExportError,
            "needs the preprocessing",
        ),
        (
            lambda: keras.Sequential([keras.Input((2,)), layers.Dense(2)]),
            {"metadata": {"target": "x"}},
            ExportError,
            "metadata keys",
        ),
    ],
)
def test_what_can_not_be_exported_is_said(make, options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        qat_lib.export_onnx(make(), tmp_path / "no.onnx", **options)
    assert list(tmp_path.iterdir()) == []


def test_other_bit_widths_are_refused(tmp_path):
    x = keras.Input((4,))
    model = keras.Model(x, qat_lib.TensorQuantizer(num_bits=4, name="four")(x))
    with pytest.raises(ExportError, match="8 bits"):
        qat_lib.export_onnx(model, tmp_path / "four.onnx")


def test_a_failed_verification_leaves_no_file_and_the_old_one_stays(quantized, plan, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    wrong = plan.without(plan.quantizers[0].name)
    with pytest.raises(VerificationError, match="Q02"):
        qat_lib.export_onnx(quantized, path, plan=wrong)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_can_not_be_written_is_said(network, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ExportError, match="write"):
        qat_lib.export_onnx(network, tmp_path / "model.onnx")


def test_a_file_in_the_place_of_the_folder_is_said(network, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="write"):
        qat_lib.export_onnx(network, tmp_path / "file" / "model.onnx")


def test_weights_past_the_limit_go_into_a_file_of_their_own(
    quantized, plan, images, tmp_path, monkeypatch
):
    from qat_lib.export import finish

    monkeypatch.setattr(finish, "EXTERNAL_DATA_ABOVE", 100)
    path = tmp_path / "big.onnx"
    report = qat_lib.export_onnx(quantized, path, plan=plan)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["big.onnx", "big.onnx.data"]
    assert report.bytes == sum(p.stat().st_size for p in tmp_path.iterdir())
    assert qat_lib.verify_onnx(path, plan) == []
    assert qat_lib.check_parity(quantized, path, images, layers=True).passed
    (tmp_path / "big.onnx.data").unlink()
    with pytest.raises(ExportError, match="external data"):
        qat_lib.verify_onnx(path)


def test_a_layer_comparison_leaves_the_weights_outside(quantized, exported, tmp_path):
    """A model of more than 2 GB can't be handed to ONNX Runtime in one piece."""
    from qat_lib.export import session

    path = tmp_path / "big.onnx"
    onnx.save(
        onnx.load(exported), path, save_as_external_data=True, location="big.data", size_threshold=0
    )
    small = path.stat().st_size
    text, added = session._with_outputs(path, ("stem/Conv:0", "quant_stem/Conv:0"))
    assert (len(text) - small, len(added)) < (1000, 3)


@pytest.mark.slow
def test_more_than_two_gigabytes(tmp_path):
    available = (
        int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
    )
    if available < 14e9:
        pytest.skip(f"needs 14 GB of free memory, {available / 1e9:.1f} GB are there")
    x = keras.Input((8,), dtype="int32")
    y = keras.layers.GlobalAveragePooling1D()(
        keras.layers.Embedding(540_000, 1024, embeddings_initializer="ones")(x)
    )
    model = keras.Model(x, keras.layers.Dense(4)(keras.layers.Dense(32, activation="relu")(y)))
    data = np.arange(64, dtype=np.int32).reshape(8, 8)
    quantized = qat_lib.quantize_model(model)
    qat_lib.calibrate(quantized, data, method="max")
    path = tmp_path / "big.onnx"
    assert qat_lib.export_onnx(quantized, path).bytes > 2**31
    assert path.stat().st_size < 100_000
    assert qat_lib.verify_onnx(path) == []
    assert qat_lib.analyze_onnx(path).int8_layers == 2
    assert qat_lib.check_parity(quantized, path, data, layers=True).passed


def test_parity_needs_data_that_fit(quantized, exported, images):
    with pytest.raises(ExportError, match="at least one sample"):
        qat_lib.check_parity(quantized, exported, images[:0])
    with pytest.raises(ExportError, match="1 input arrays"):
        qat_lib.check_parity(quantized, exported, [images, images])


@pytest.mark.parametrize(
    "data", [np.zeros((4, 3, 12, 3), "f4"), np.zeros((4, 12), "f4"), np.full((2, 12, 12, 3), "a")]
)
def test_parity_says_what_data_the_model_takes(quantized, exported, data):
    with pytest.raises(ExportError, match="for the input 'image'"):
        qat_lib.check_parity(quantized, exported, data)


def test_parity_fails_for_another_network(network, quantized, exported, images, tmp_path):
    other = build_network()
    assert not qat_lib.check_parity(other, exported, images).passed


@pytest.fixture
def edited(exported, tmp_path):
    """Return a function that changes a copy of the exported file and verifies it."""

    def edit(change):
        proto = onnx.load(exported)
        change(proto)
        path = Path(tmp_path / "edited.onnx")
        onnx.save(proto, path)
        return {
            finding.code for finding in qat_lib.verify_onnx(path) if finding.severity == "error"
        }

    return edit


def tensor_of(proto, name):
    return next(t for t in proto.graph.initializer if t.name == name)


def scaled(name, factor):
    def change(proto):
        tensor = tensor_of(proto, name)
        array = (onnx.numpy_helper.to_array(tensor) * np.float32(factor)).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))

    return change


def flip_one_integer(proto):
    tensor = tensor_of(proto, "stem_kernel_quantizer/integers")
    array = onnx.numpy_helper.to_array(tensor).copy()
    array.flat[0] ^= 1
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def drop_a_pair(proto):
    quantize = next(n for n in proto.graph.node if n.name == "pad_quantizer/QuantizeLinear")
    dequantize = next(n for n in proto.graph.node if n.name == "pad_quantizer/DequantizeLinear")
    for node in proto.graph.node:
        for index, name in enumerate(node.input):
            if name == dequantize.output[0]:
                node.input[index] = quantize.input[0]
    proto.graph.node.remove(quantize)
    proto.graph.node.remove(dequantize)


def turn_the_axis(name):
    def change(proto):
        node = next(n for n in proto.graph.node if n.name == f"{name}/DequantizeLinear")
        (axis,) = (a for a in node.attribute if a.name == "axis")
        axis.i = 1 - axis.i

    return change


def put_an_operator_between(proto):
    dequantize = next(n for n in proto.graph.node if n.name == "pad_quantizer/DequantizeLinear")
    index = list(proto.graph.node).index(dequantize)
    proto.graph.node.insert(
        index, onnx.helper.make_node("Identity", [dequantize.input[0]], ["between"], "between")
    )
    dequantize.input[0] = "between"


def let_one_reader_pass_by(proto):
    """Give one of two readers the floating-point tensor; the other one still reads the pair."""
    made = {n.output[0]: n for n in proto.graph.node if n.op_type == "QuantizeLinear"}
    for dequantize in (
        n for n in proto.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in made
    ):
        readers = [n for n in proto.graph.node if dequantize.output[0] in n.input]
        if len(readers) > 1:
            readers[0].input[list(readers[0].input).index(dequantize.output[0])] = made[
                dequantize.input[0]
            ].input[0]
            return
    raise LookupError("no tensor has two readers")


def quantize_once_more(proto):
    """Put a second pair of the same quantizer, scale and all, behind the first."""
    quantize, dequantize = (n for n in proto.graph.node if n.name.startswith("pad_quantizer/"))
    readers = [n for n in proto.graph.node if dequantize.output[0] in n.input]
    more = []
    for node, source, output in ((quantize, dequantize.output[0], "q2"), (dequantize, "q2", "dq2")):
        more.append(
            onnx.helper.make_node(
                node.op_type, [source, *node.input[1:]], [output], f"{node.name}_1", axis=1
            )
        )
    for node in readers:
        node.input[list(node.input).index(dequantize.output[0])] = "dq2"
    index = list(proto.graph.node).index(dequantize) + 1
    nodes = [*proto.graph.node[:index], *more, *proto.graph.node[index:]]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def rename_a_quantizer(proto):
    for node in proto.graph.node:
        node.name = node.name.replace("pad_quantizer", "stranger")


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        (lambda proto: None, set()),
        (scaled("pad_quantizer/scale", 1.000001), {"Q03"}),
        (scaled("stem_kernel_quantizer/scale", 1.0001), {"Q03"}),
        (flip_one_integer, {"Q04"}),
        (drop_a_pair, {"Q01"}),
        (turn_the_axis("stem_kernel_quantizer"), {"Q03", "V04"}),
        (turn_the_axis("main_kernel_quantizer"), {"Q03"}),
        (put_an_operator_between, {"Q05"}),
        (let_one_reader_pass_by, {"Q05"}),
        (quantize_once_more, {"Q02", "Q05"}),
        (rename_a_quantizer, {"Q01", "Q02"}),
        (lambda proto: proto.graph.node[-1].ClearField("output"), {"C01"}),
    ],
    ids=[
        "untouched",
        "activation scale",
        "weight scale",
        "integer",
        "folded",
        "axis",
        "square axis",
        "between",
        "passed by",
        "twice",
        "renamed",
        "broken",
    ],
)
def test_whatever_a_tool_changes_is_found(edited, change, codes):
    assert codes <= edited(change)
    assert codes or edited(change) == set()


def test_a_foreign_file_is_checked_for_legality_only(tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x) => (float[1,4] y)
        <float s = {0.1}, uint8 z = {128}> {
        q = QuantizeLinear(x, s, z)
        y = DequantizeLinear(q, s, z) }"""
    path = tmp_path / "foreign.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    codes = {finding.code for finding in qat_lib.verify_onnx(path)}
    assert {"V02", "V03"} <= codes
    assert not {code for code in codes if code.startswith("Q")}


def test_a_float_export_that_another_tool_quantized_is_a_foreign_file(network, plan, tmp_path):
    path = tmp_path / "float.onnx"
    qat_lib.export_onnx(network, path)
    proto = onnx.load(path)
    for name, value in (("s", np.float32(0.1)), ("z", np.int8(0))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    node = next(n for n in proto.graph.node if n.op_type == "Conv")
    for op_type, source, output in (
        ("QuantizeLinear", node.input[0], "q"),
        ("DequantizeLinear", "q", "dq"),
    ):
        made = onnx.helper.make_node(
            op_type, [source, "s", "z"], [output], f"added_{op_type}", axis=1
        )
        proto.graph.node.insert(list(proto.graph.node).index(node), made)
    node.input[0] = "dq"
    onnx.save(proto, path)
    assert qat_lib.verify_onnx(path) == []
    assert {f.code for f in qat_lib.verify_onnx(path, plan)} >= {"Q01", "Q02"}


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x08"])
def test_what_is_no_model_is_one_message(tmp_path, content):
    path = tmp_path / "no.onnx"
    path.write_bytes(content)
    with pytest.raises(ExportError, match="Expected an ONNX"):
        qat_lib.verify_onnx(path)


def test_a_broken_record_is_said(exported, tmp_path):
    proto = onnx.load(exported)
    for entry in proto.metadata_props:
        if entry.key == "qatline.quantizers":
            entry.value = '{"activations": 3}'
    onnx.save(proto, tmp_path / "record.onnx")
    with pytest.raises(ExportError, match="record"):
        qat_lib.verify_onnx(tmp_path / "record.onnx")


@pytest.mark.parametrize("form", ["object", "dict", "path"])
def test_the_plans_digest_is_recorded_in_whatever_form_it_comes(form, quantized, plan, tmp_path):
    given = {"object": plan, "dict": plan.to_dict(), "path": tmp_path / "plan.json"}[form]
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    qat_lib.export_onnx(quantized, tmp_path / "model.onnx", plan=given)
    assert read_metadata(onnx.load(tmp_path / "model.onnx"))["plan_digest"] == plan.digest()


def test_a_plan_of_another_kind_is_refused_before_the_export(network, tmp_path):
    with pytest.raises(PlanError, match="Received: int"):
        qat_lib.export_onnx(network, tmp_path / "model.onnx", plan=3)
    assert not (tmp_path / "model.onnx").exists()
