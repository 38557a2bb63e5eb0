"""One tensor traced from plan to engine, by any name."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pytest
from keras import layers

import qat_lib
from qat_lib.analysis import FusionReport
from qat_lib.analysis.tensor_trace import TensorTrace
from qat_lib.engines import EngineLayer
from qat_lib.errors import ConfigError, ExportError, PlanError


def network() -> Any:
    """Return a network with nested model, shared layer, residual and Concat."""
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 4), name="inner_in")
    y = layers.Conv2D(4, 3, padding="same", use_bias=False, name="conv")(x)
    y = layers.ReLU(name="relu")(layers.BatchNormalization(name="norm")(y))
    inner = keras.Model(x, y, name="inner")
    x = keras.Input((8, 8, 4), name="x")
    shared = layers.Conv2D(4, 1, name="shared")
    y = shared(inner(x))
    z = layers.Add(name="add")([y, shared(y)])
    z = layers.Concatenate(name="concat")([y, z])
    z = layers.Conv2D(16, 3, name="last")(z)
    z = layers.Flatten(name="flat")(z)
    return keras.Model(x, layers.Dense(3, name="dense")(z))


@dataclass(frozen=True)
class Stages:
    """What a run leaves of one network."""

    onnx: Path
    plan: qat_lib.QuantizationPlan
    analysis: FusionReport
    engine: Path

    def trace(self, name: str) -> TensorTrace:
        layers = self.engine.with_suffix(".layers.json")
        return qat_lib.trace_tensor(
            name, self.onnx, self.plan, analysis=self.analysis, engine_layers=layers
        )


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    folder = tmp_path_factory.mktemp("stages")
    model = network()
    plan = qat_lib.plan_quantization(model, custom_qdq_cases=[qat_lib.TensorRTQDQCase()])
    quantized = qat_lib.apply_plan(model, plan)
    data = np.random.default_rng(0).normal(size=(8, 8, 8, 4)).astype(np.float32)
    qat_lib.calibrate(quantized, data, "max")
    qat_lib.export_onnx(quantized, folder / "m.onnx", plan=plan)
    spec = qat_lib.BuildSpec(backend="onnxruntime")
    qat_lib.build_engine(folder / "m.onnx", spec, output=folder / "m.engine")
    analysis = qat_lib.analyze_onnx(folder / "m.onnx")
    return Stages(folder / "m.onnx", plan, analysis, folder / "m.engine")


def test_layer_is_traced_from_plan_to_engine(stages: Stages) -> None:
    trace = stages.trace("relu")
    assert trace.keras_layers == ("relu",)
    assert [(node.name, node.op) for node in trace.nodes] == [("relu/Relu", "Relu")]
    (quantizer,) = trace.quantizers
    assert quantizer.name == "relu_quantizer"
    assert [entry.tensor for entry in quantizer.entries] == ["relu:0"]
    assert quantizer.nodes == ("relu_quantizer/QuantizeLinear", "relu_quantizer/DequantizeLinear")
    (reader,) = quantizer.readers
    assert (reader.name, reader.keras_layer, reader.predicted) == (
        "quant_shared/Conv",
        "shared",
        "int8",
    )
    assert reader.built
    assert set(quantizer.nodes) <= {name for x in trace.engine_layers for name in x.nodes}
    assert {layer.keras_layer for layer in trace.engine_layers} >= {"relu", "shared"}


def test_scale_and_range_are_those_of_file(stages: Stages) -> None:
    tensors = {t.name: t for t in onnx.load(stages.onnx).graph.initializer}
    for name, layer in (("relu_quantizer", "relu"), ("conv_kernel_quantizer", "conv")):
        (quantizer,) = stages.trace(layer).quantizers
        scale = onnx.numpy_helper.to_array(tensors[f"{name}/scale"]).ravel()
        np.testing.assert_array_equal(np.float32(quantizer.scale), scale)
        np.testing.assert_allclose(quantizer.amax, scale * 127.0, rtol=1e-6)


def test_range_of_unsigned_integers_has_255_steps(tmp_path: Path) -> None:
    x = keras.Input((4,), name="x")
    model = keras.Model(x, layers.Dense(2, name="d")(layers.ReLU(name="r")(x)))
    quantized = qat_lib.quantize_model(model, unsigned=True)
    qat_lib.calibrate(quantized, np.float32([[1, 2, 3, 5.1]]), "max")
    qat_lib.export_onnx(quantized, tmp_path / "m.onnx", target="openvino")
    (quantizer,) = qat_lib.trace_tensor("r_quantizer", tmp_path / "m.onnx").quantizers
    assert quantizer.amax == pytest.approx((5.1,))
    assert quantizer.entries == ()


@pytest.mark.parametrize(
    ("name", "layer", "quantizers"),
    [
        ("conv", "conv", ["conv_kernel_quantizer"]),
        ("conv_kernel_quantizer", "conv", ["conv_kernel_quantizer"]),
        ("conv/kernel", "conv", ["conv_kernel_quantizer"]),
        ("quant_conv/Conv", "conv", ["conv_kernel_quantizer"]),
        ("quant_conv/Conv:0", "conv", ["conv_kernel_quantizer"]),
        ("conv_kernel_quantizer/DequantizeLinear", "conv", ["conv_kernel_quantizer"]),
        ("conv_kernel_quantizer/scale", "conv", ["conv_kernel_quantizer"]),
        ("x", "x", ["x_quantizer"]),
        ("x:0", "x", ["x_quantizer"]),
        ("flat", "flat", ["flat_quantizer"]),
        ("norm", "norm", []),
    ],
)
def test_a_tensor_is_found_by_every_name(
    stages: Stages, name: str, layer: str, quantizers: list[str]
) -> None:
    trace = stages.trace(name)
    assert trace.name == name
    assert trace.keras_layers == (layer,)
    assert [quantizer.name for quantizer in trace.quantizers] == quantizers


def test_fused_layer_says_why_it_is_unquantized(stages: Stages) -> None:
    trace = stages.trace("norm")
    assert [skipped.reason for skipped in trace.skipped] == ["fused"]
    assert (trace.nodes, trace.engine_layers, trace.findings) == ((), (), ())
    assert "not quantized by the plan: fused (runs in the kernel of conv)" in str(trace)


def test_shared_layer_has_node_for_each_call(stages: Stages) -> None:
    trace = stages.trace("shared")
    assert [node.name for node in trace.nodes] == ["quant_shared/Conv", "quant_shared/Conv_1"]
    kernel = next(q for q in trace.quantizers if q.name == "shared_kernel_quantizer")
    assert [node.name for node in kernel.readers] == [node.name for node in trace.nodes]
    assert len(kernel.entries) == 1


def test_tied_quantizer_is_narrowed_to_asked_tensor(stages: Stages) -> None:
    (tied,) = {e.name for e in stages.plan.quantizers if e.tensor == "concat:0"}
    whole = stages.trace(tied)
    assert set(whole.keras_layers) > {"concat"}
    (quantizer,) = whole.quantizers
    assert len(quantizer.entries) == len([e for e in stages.plan.quantizers if e.name == tied])
    (narrowed,) = stages.trace("concat:0").quantizers
    assert [entry.tensor for entry in narrowed.entries] == ["concat:0"]
    assert len(narrowed.nodes) == 2
    assert set(narrowed.nodes) < set(quantizer.nodes)


def test_findings_are_those_of_the_layer(stages: Stages) -> None:
    findings = stages.trace("dense").findings
    assert findings
    assert {finding.keras_layer for finding in findings} == {"dense"}
    changed = tuple(replace(f, keras_layer="", quantizer="x_quantizer") for f in findings)
    analysis = replace(stages.analysis, findings=changed)
    trace = qat_lib.trace_tensor("x", stages.onnx, analysis=analysis)
    assert trace.findings == changed


def test_file_is_traced_without_plan_and_engine(stages: Stages) -> None:
    trace = qat_lib.trace_tensor("conv", stages.onnx)
    (quantizer,) = trace.quantizers
    assert quantizer.entries == trace.findings == trace.engine_layers == ()
    assert [(node.predicted, node.built) for node in trace.nodes] == [("", "")]
    assert str(trace).splitlines()[:3] == [
        "conv: Keras layer conv",
        "  node quant_conv/Conv",
        "  quantizer conv_kernel_quantizer",
    ]


def test_plan_of_another_file_is_traced_alone(stages: Stages, tmp_path: Path) -> None:
    qat_lib.export_onnx(network(), tmp_path / "float.onnx")
    (quantizer,) = qat_lib.trace_tensor("conv", tmp_path / "float.onnx", stages.plan).quantizers
    assert (quantizer.nodes, quantizer.scale) == ((), ())
    assert [entry.tensor for entry in quantizer.entries] == ["conv/kernel"]
    trace = qat_lib.trace_tensor("conv_kernel_quantizer", tmp_path / "float.onnx", stages.plan)
    assert trace.keras_layers == ("conv",)
    assert "nodes: none in the file" in str(trace)


def test_plan_and_layers_accept_values_and_paths(stages: Stages, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(stages.plan.to_json())
    content = json.loads(stages.engine.with_suffix(".layers.json").read_text())
    built = [EngineLayer.from_dict(layer) for layer in content["layers"]]
    assert qat_lib.trace_tensor(
        "conv",
        str(stages.onnx),
        tmp_path / "plan.json",
        analysis=stages.analysis,
        engine_layers=built,
    ) == stages.trace("conv")


def test_a_trace_is_text_and_json(stages: Stages) -> None:
    trace = stages.trace("conv")
    text = str(trace)
    assert "plan: weight conv/kernel, 8 bits: default" in text
    assert " in 4 channels, range " in text
    assert "read by quant_conv/Conv (predicted int8, built " in text
    assert "engine layer quant_conv/Conv" in text
    assert "finding V25 info quant_conv/Conv: " in text
    content = json.loads(json.dumps(trace.to_dict()))
    assert content["quantizers"][0]["entries"][0]["tensor"] == "conv/kernel"


def test_unknown_name_is_refused_with_nearest_ones(stages: Stages) -> None:
    with pytest.raises(ConfigError, match=r"Received: 'relo'\. Did you mean 'relu'"):
        stages.trace("relo")
    with pytest.raises(ConfigError, match=r"Received: ''\. List them"):
        stages.trace("")


@pytest.mark.parametrize("text", ["[]", "{}", '{"layers": [{"name": "a"}]}', '{"layers": ["a"]}'])
def test_layers_of_another_form_are_refused(stages: Stages, tmp_path: Path, text: str) -> None:
    path = tmp_path / "layers.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"layers of an engine that qatline built in .*layers"):
        qat_lib.trace_tensor("conv", stages.onnx, engine_layers=path)


def test_sources_that_are_none_are_refused(stages: Stages, tmp_path: Path) -> None:
    with pytest.raises(ExportError):
        qat_lib.trace_tensor("conv", tmp_path / "missing.onnx")
    with pytest.raises(PlanError):
        qat_lib.trace_tensor("conv", stages.onnx, {"version": 1})
