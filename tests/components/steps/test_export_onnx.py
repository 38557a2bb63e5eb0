"""The export step on prepared data: outputs and errors."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from qat_lib.engines import choose_backend
from qat_lib.errors import BackendUnavailableError, ConfigError, ExportError, VerificationError
from qatline.components.export.choice import (
    choose_integers,
)
from qatline.components.settings import EngineSettings, ExportSettings, QuantizationSettings
from qatline.components.steps.export_onnx import export_onnx_step

keras = pytest.importorskip("keras")


def digits_network():
    x = image = keras.Input((8, 8, 1), name="image")
    x = keras.layers.Conv2D(8, 3, padding="same", use_bias=False, name="conv")(x)
    x = keras.layers.ReLU(name="relu")(keras.layers.BatchNormalization(name="bn")(x))
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(image, keras.layers.Dense(10, name="logits")(x), name="digits")


@pytest.fixture(scope="module")
def steps(digits_dataset, tmp_path_factory):
    """Earlier steps' outputs: a trained baseline and two quantized forms."""
    import qat_lib
    from qatline.components.data.reader import load_split

    folder = tmp_path_factory.mktemp("steps")
    keras.utils.set_random_seed(0)
    model = digits_network()
    x, y = load_split(digits_dataset, "train", limit=256)
    model.compile(
        keras.optimizers.Adam(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.fit(x, y, epochs=2, verbose=0)
    plan = qat_lib.plan_quantization(model, custom_qdq_cases=[qat_lib.TensorRTQDQCase()])
    quantized = qat_lib.apply_plan(model, plan)
    qat_lib.calibrate(quantized, x[:64], method="max")
    for name, network in (("baseline", model), ("ptq", quantized), ("qat", quantized)):
        (folder / name).mkdir()
        network.save(folder / name / "model.keras")
        (folder / name / "metrics.json").write_text(json.dumps({"test_accuracy": 0.5}))
        (folder / name / "model.json").write_text(json.dumps({"probabilities": False}))
        if name != "baseline":
            (folder / name / "plan.json").write_text(plan.to_json())
    return folder


def run(dataset: Path, steps: Path, out: Path, progress, engine=None, **settings):
    out.mkdir()
    return export_onnx_step(
        dataset,
        steps / "baseline",
        steps / "ptq",
        steps / "qat",
        out,
        export=ExportSettings(parity_samples=64, **settings),
        engine=EngineSettings.model_validate(
            {"backend": "tensorrt", "fp16": "never", **(engine or {})}
        ),
        progress=progress,
    )


def test_three_verified_files_with_parity_and_analysis(digits_dataset, steps, tmp_path, progress):
    out = tmp_path / "onnx"
    metrics = run(digits_dataset, steps, out, progress)
    assert {
        "fp32.onnx",
        "ptq.onnx",
        "qat.onnx",
        "plan.json",
        "export.json",
        "analysis.json",
        "analysis.html",
    } <= {path.name for path in out.iterdir()}
    summary = json.loads((out / "export.json").read_text())
    for variant in ("fp32", "ptq", "qat"):
        assert summary[variant]["parity"]["passed"]
        assert summary[variant]["parity"]["samples"] == 64
        assert summary[variant]["verification"] == []
        assert (
            summary[variant]["bytes"]
            == (out / f"{variant}.onnx").stat().st_size
            == metrics[f"{variant}_bytes"]
        )
    assert metrics["int8_layers"] == metrics["weighted_layers"] == 2
    assert metrics["fp32_quantizers"] == 0 < metrics["qat_quantizers"]
    assert all(np.isfinite(value) for value in metrics.values())
    assert json.loads((out / "analysis.json").read_text())["layers"]
    assert progress.updates[-1] == ("exporting", 3, 3)


def test_settings_reach_the_files(digits_dataset, steps, tmp_path, progress):
    import onnx

    out = tmp_path / "onnx"
    run(digits_dataset, steps, out, progress, opset=13, weights="qdq")
    proto = onnx.load(out / "qat.onnx")
    assert proto.opset_import[0].version == 13
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    assert json.loads(metadata["qatline.classes"]) == [str(i) for i in range(10)]
    assert json.loads(metadata["qatline.preprocessing"])["image_shape"] == [8, 8, 1]
    assert float(metadata["qatline.accuracy"]) == 0.5


def test_openvino_graph_is_analyzed_as_tensorrt_graph(digits_dataset, steps, tmp_path, progress):
    import onnx

    out = tmp_path / "onnx"
    metrics = run(
        digits_dataset, steps, out, progress, target="openvino", engine={"backend": "openvino"}
    )
    kinds = {tensor.data_type for tensor in onnx.load(out / "qat.onnx").graph.initializer}
    assert onnx.TensorProto.UINT8 in kinds
    assert metrics["int8_layers"] == 2
    findings = json.loads((out / "analysis.json").read_text())["findings"]
    assert not [finding for finding in findings if finding["severity"] == "error"]
    assert not [path for path in out.iterdir() if path.is_dir()]


@pytest.mark.matrix
def test_the_target_follows_the_backend_of_the_engines(digits_dataset, steps, tmp_path, progress):
    for backend in ("tensorrt", "openvino", "onnxruntime"):
        run(digits_dataset, steps, tmp_path / backend, progress, engine={"backend": backend})
        assert (
            json.loads((tmp_path / backend / "export.json").read_text())["qat"]["target"] == backend
        )
    run(digits_dataset, steps, tmp_path / "auto", progress, engine={"backend": "auto"})
    summary = json.loads((tmp_path / "auto" / "export.json").read_text())
    assert summary["ptq"]["target"] == choose_backend("auto")


def test_unsigned_model_is_analyzed_as_signed(digits_dataset, steps, tmp_path, progress):
    import qat_lib

    baseline = qat_lib.load_model(steps / "baseline" / "model.keras")
    plan = qat_lib.plan_quantization(
        baseline, custom_qdq_cases=[qat_lib.TensorRTQDQCase()], unsigned=True
    )
    quantized = qat_lib.apply_plan(baseline, plan)
    assert sum(entry.unsigned for entry in plan.quantizers) == 2
    for name, quantizer in qat_lib.model_quantizers(
        qat_lib.load_model(steps / "qat" / "model.keras")
    ).items():
        qat_lib.model_quantizers(quantized)[name].amax = quantizer.amax
    folder = tmp_path / "steps"
    shutil.copytree(steps, folder)
    for name in ("ptq", "qat"):
        quantized.save(folder / name / "model.keras")
        (folder / name / "plan.json").write_text(plan.to_json())
    metrics = run(
        digits_dataset, folder, tmp_path / "onnx", progress, engine={"backend": "openvino"}
    )
    assert metrics["int8_layers"] == 2
    summary = json.loads((tmp_path / "onnx" / "export.json").read_text())
    assert summary["qat"]["parity"]["passed"]
    with pytest.raises(ExportError, match="TensorRT runs no unsigned integers"):
        run(digits_dataset, folder, tmp_path / "gpu", progress, engine={"backend": "tensorrt"})


@pytest.mark.parametrize(
    ("unsigned", "target", "backend", "expected"),
    [
        ("auto", "auto", "openvino", True),
        ("auto", "auto", "onnxruntime", True),
        ("auto", "auto", "tensorrt", False),
        ("auto", "tensorrt", "openvino", False),
        ("auto", "onnxruntime", "tensorrt", False),
        ("always", "onnxruntime", "onnxruntime", True),
        ("never", "openvino", "openvino", False),
    ],
)
def test_the_sign_follows_the_target(unsigned, target, backend, expected):
    sections = (
        QuantizationSettings(unsigned=unsigned),
        ExportSettings(target=target),
        EngineSettings(backend=backend),
    )
    assert choose_integers(*sections)["unsigned"] is expected


def test_unsigned_integers_for_tensorrt_are_refused():
    with pytest.raises(ConfigError, match=r"Set quantization\.unsigned to auto or never"):
        choose_integers(
            QuantizationSettings(unsigned="always"),
            ExportSettings(),
            EngineSettings(backend="tensorrt"),
        )


def test_a_gpu_that_auto_finds_gets_signed_integers(monkeypatch):
    monkeypatch.setattr("qat_lib.engines.choose_backend", lambda wanted: "tensorrt")
    sections = ExportSettings(target="onnxruntime"), EngineSettings()
    assert not choose_integers(QuantizationSettings(), *sections)["unsigned"]
    with pytest.raises(ConfigError, match=r"Received: engine\.backend=tensorrt"):
        choose_integers(QuantizationSettings(unsigned="always"), *sections)


def test_choose_integers_without_backend_is_signed(monkeypatch):
    def none(wanted):
        raise BackendUnavailableError("none here")

    monkeypatch.setattr("qat_lib.engines.choose_backend", none)
    sections = ExportSettings(), EngineSettings()
    assert not choose_integers(QuantizationSettings(), *sections)["unsigned"]
    assert choose_integers(QuantizationSettings(unsigned="always"), *sections)["unsigned"]


def test_export_refuses_target_unfit_for_backend(digits_dataset, steps, tmp_path, progress):
    with pytest.raises(ConfigError, match=r"Set export\.target to auto or tensorrt"):
        run(digits_dataset, steps, tmp_path / "onnx", progress, target="openvino")


@pytest.mark.matrix
def test_an_engine_in_fp16_gets_its_graph(digits_dataset, steps, tmp_path, progress):
    import onnx

    def types(path: Path) -> set[int]:
        return {tensor.data_type for tensor in onnx.load(path).graph.initializer}

    out = tmp_path / "auto"
    metrics = run(digits_dataset, steps, out, progress, engine={"fp16": "auto"})
    assert onnx.TensorProto.FLOAT16 in types(out / "fp16.onnx")
    assert onnx.TensorProto.FLOAT not in types(out / "fp16.onnx")
    assert onnx.TensorProto.FLOAT16 not in types(out / "fp32.onnx") | types(out / "qat.onnx")
    assert metrics["fp16_bytes"] < metrics["fp32_bytes"]
    assert json.loads((out / "export.json").read_text())["fp16"]["parity"]["passed"]
    assert progress.updates[-1] == ("exporting", 4, 4)
    run(
        digits_dataset,
        steps,
        tmp_path / "cpu",
        progress,
        engine={"fp16": "auto", "backend": "openvino"},
    )
    assert not (tmp_path / "cpu" / "fp16.onnx").exists()
    run(
        digits_dataset,
        steps,
        tmp_path / "on",
        progress,
        engine={"fp16": "always", "backend": "openvino"},
    )
    assert (tmp_path / "on" / "fp16.onnx").exists()


@pytest.mark.matrix
@pytest.mark.parametrize("target", ["tensorrt", "openvino"])
def test_fp16_precision_keeps_fp32_graph(digits_dataset, steps, tmp_path, progress, target):
    import onnx

    out = tmp_path / "onnx"
    metrics = run(
        digits_dataset,
        steps,
        out,
        progress,
        target=target,
        float_precision="fp16",
        engine={"backend": target, "fp16": "never"},
    )
    types = {
        name: {t.data_type for t in onnx.load(out / f"{name}.onnx").graph.initializer}
        for name in ("fp32", "qat")
    }
    assert onnx.TensorProto.FLOAT16 in types["qat"]
    assert onnx.TensorProto.FLOAT not in types["qat"]
    assert onnx.TensorProto.FLOAT16 not in types["fp32"]
    summary = json.loads((out / "export.json").read_text())
    assert [summary[name]["float_precision"] for name in ("fp32", "ptq", "qat")] == [
        "fp32",
        "fp16",
        "fp16",
    ]
    parity = summary["qat"]["parity"]
    assert parity["passed"]
    assert parity["fp32"]["mismatches"] == 0
    assert parity["largest_difference"] <= parity["tolerance"] * parity["magnitude"]
    assert metrics["int8_layers"] == metrics["weighted_layers"] == 2
    assert not [path for path in out.iterdir() if path.is_dir()]


def test_fp16_file_far_from_keras_stops_the_step(
    digits_dataset, steps, tmp_path, progress, monkeypatch
):
    monkeypatch.setattr("qat_lib.export.comparing.HALF_BOUND", 1e-9)
    with pytest.raises(
        VerificationError, match=r"ptq\.onnx does NOT agree with Keras .* in FP16\."
    ):
        run(digits_dataset, steps, tmp_path / "onnx", progress, float_precision="fp16")


def test_a_plan_of_another_model_stops_the_step(digits_dataset, steps, tmp_path, progress):
    import shutil

    import qat_lib

    other = tmp_path / "steps"
    shutil.copytree(steps, other)
    plan = qat_lib.QuantizationPlan.from_json((other / "qat" / "plan.json").read_text())
    (other / "qat" / "plan.json").write_text(plan.without(plan.quantizers[0].name).to_json())
    with pytest.raises(VerificationError, match="Q02"):
        run(digits_dataset, other, tmp_path / "onnx", progress)
    assert not (tmp_path / "onnx" / "qat.onnx").exists()


def test_disagreement_with_keras_stops_the_step(
    digits_dataset, steps, tmp_path, progress, monkeypatch
):
    from qat_lib.export import parity_report

    report = parity_report.ParityReport(
        samples=1,
        largest_difference=1.0,
        mean_difference=1.0,
        magnitude=1.0,
        labels_equal=0,
        ties=0,
        mismatches=1,
        step=0.0,
        noise=0.0,
        tolerance=None,
    )
    monkeypatch.setattr("qat_lib.check_parity", lambda *args, **kwargs: report, raising=False)
    with pytest.raises(VerificationError, match="NOT agree"):
        run(digits_dataset, steps, tmp_path / "onnx", progress)


def test_int4_file_is_analyzed_in_its_int8_form(digits_dataset, steps, tmp_path, progress):
    out = tmp_path / "onnx"
    run(
        digits_dataset,
        steps,
        out,
        progress,
        engine={"backend": "openvino"},
        target="openvino",
        weights="int4",
    )
    analysis = json.loads((out / "analysis.json").read_text())
    assert (analysis["target"], analysis["summary"]["errors"]) == ("tensorrt", 0)
