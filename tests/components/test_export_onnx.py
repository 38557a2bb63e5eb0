"""The export step on a prepared data set: what it writes, and what stops it."""

import json
from pathlib import Path

import numpy as np
import pytest

from components.export_onnx import export_onnx
from components.settings import ExportSettings
from qat_lib.errors import VerificationError

keras = pytest.importorskip("keras")


def digits_network():
    x = image = keras.Input((8, 8, 1), name="image")
    x = keras.layers.Conv2D(8, 3, padding="same", use_bias=False, name="conv")(x)
    x = keras.layers.ReLU(name="relu")(keras.layers.BatchNormalization(name="bn")(x))
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(image, keras.layers.Dense(10, name="logits")(x), name="digits")


@pytest.fixture(scope="module")
def steps(digits_dataset, tmp_path_factory):
    """The directories of the steps before: a trained enough baseline, and its quantized form twice."""
    import qat_lib
    from components.runtime.reader import load_split

    folder = tmp_path_factory.mktemp("steps")
    keras.utils.set_random_seed(0)
    model = digits_network()
    x, y = load_split(digits_dataset, "train", limit=256)
    model.compile(keras.optimizers.Adam(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, epochs=2, verbose=0)
    plan = qat_lib.plan_quantization(model, custom_qdq_cases=[qat_lib.TensorRTQDQCase()])
    quantized = qat_lib.apply_plan(model, plan)
    qat_lib.calibrate(quantized, x[:64], method="max")
    for name, network in (("baseline", model), ("ptq", quantized), ("qat", quantized)):
        (folder / name).mkdir()
        network.save(folder / name / "model.keras")
        (folder / name / "metrics.json").write_text(json.dumps({"test_accuracy": 0.5}))
        if name != "baseline":
            (folder / name / "plan.json").write_text(plan.to_json())
    return folder


def run(dataset: Path, steps: Path, out: Path, progress, **settings):
    out.mkdir()
    return export_onnx(
        dataset,
        steps / "baseline",
        steps / "ptq",
        steps / "qat",
        out,
        export=ExportSettings(parity_samples=64, **settings),
        seed=0,
        progress=progress,
    )


def test_three_verified_files_with_parity_and_analysis(digits_dataset, steps, tmp_path, progress):
    out = tmp_path / "onnx"
    metrics = run(digits_dataset, steps, out, progress)
    assert {"fp32.onnx", "ptq.onnx", "qat.onnx", "plan.json", "export.json", "analysis.json", "analysis.html"} <= {
        path.name for path in out.iterdir()
    }
    summary = json.loads((out / "export.json").read_text())
    for variant in ("fp32", "ptq", "qat"):
        assert summary[variant]["parity"]["passed"]
        assert summary[variant]["parity"]["samples"] == 64
        assert summary[variant]["verification"] == []
        assert summary[variant]["bytes"] == (out / f"{variant}.onnx").stat().st_size == metrics[f"{variant}_bytes"]
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


def test_a_graph_for_openvino_is_analyzed_as_its_twin_for_tensorrt(digits_dataset, steps, tmp_path, progress):
    import onnx

    out = tmp_path / "onnx"
    metrics = run(digits_dataset, steps, out, progress, target="openvino")
    kinds = {tensor.data_type for tensor in onnx.load(out / "qat.onnx").graph.initializer}
    assert onnx.TensorProto.UINT8 in kinds
    assert metrics["int8_layers"] == 2
    findings = json.loads((out / "analysis.json").read_text())["findings"]
    assert not [finding for finding in findings if finding["severity"] == "error"]
    assert not [path for path in out.iterdir() if path.is_dir()]


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


def test_a_file_that_disagrees_with_keras_stops_the_step(digits_dataset, steps, tmp_path, progress, monkeypatch):
    from qat_lib.export import parity

    report = parity.ParityReport(
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
