"""Small real retrainings: linear classifiers of digits, trained here, exported by hand.

What trains and exports is short-cut; building, evaluation, gate and promotion are the steps of the
pipeline.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.preprocessing import Preprocessing
from qatline.components.artifacts import Promotion
from qatline.components.artifacts.data_info import DatasetInfo, InputInfo
from qatline.components.artifacts.evaluation import FileCheck
from qatline.components.artifacts.promotion import PromotionOutcome, Verdict
from qatline.components.settings import EngineSettings, GateSettings, RegistrySettings
from qatline.components.steps.build_engine import build_engine_step
from qatline.components.steps.evaluate import evaluate_step
from qatline.components.steps.promote import promote_step
from qatline.components.support.events import NullProgress

ENGINE = EngineSettings.model_validate(
    {"batch_size": 8, "backend": "openvino", "benchmark_seconds": 0.02, "fp16": "never"}
)
# One layer on a shared machine says nothing about speed: these are for the accuracies.
GATE = {"min_int8_fraction": 0.0, "min_speedup": 1e-6, "max_drop": 0.05}
MARGINS = {"max_latency_increase": 1e6, "max_size_increase": 10.0, "min_gain": 0.999}
CLASSES = tuple("0123456789")


@dataclass
class Retraining:
    """One retraining, up to the export.

    Attributes:
        folder: where its steps write.
        train: images and labels that it learns from.
        test: images and labels that all are measured on.
        scale: of the preprocessing, which differs between retrainings as it may in life.
    """

    folder: Path
    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    scale: float = 1 / 16
    gate: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("dataset", "baseline", "ptq", "qat", "onnx", "engines", "evaluation"):
            (self.folder / name).mkdir(parents=True)
        self._write_data()
        self._write_models()
        build_engine_step(
            self.folder / "onnx", self.folder / "engines", engine=ENGINE, seed=0,
            progress=NullProgress(),
        )  # fmt: skip

    def evaluate(self, name: str) -> None:
        """Run the step evaluate against the champion of a registered model."""
        read = ("dataset", "baseline", "qat", "onnx", "engines")
        with _checks_left_out():
            evaluate_step(
                **{each: self.folder / each for each in read},
                out=self.folder / "evaluation",
                engine=ENGINE,
                seed=0,
                progress=NullProgress(),
                registry=RegistrySettings(name=name),
            )

    def promote(self, name: str) -> PromotionOutcome:
        """Run the step promote; return what became of the candidate."""
        out = self.folder / "promotion"
        out.mkdir()
        steps = ("dataset", "baseline", "ptq", "qat", "onnx", "engines", "evaluation")
        promote_step(
            *(self.folder / each for each in steps),
            out,
            gate=GateSettings.model_validate({**GATE, "champion": MARGINS, **self.gate}),
            seed=0,
            progress=NullProgress(),
            engine=ENGINE,
            registry=RegistrySettings(name=name),
        )
        outcome = Promotion(out).outcome()
        assert outcome is not None
        return outcome

    def run(self, name: str) -> PromotionOutcome:
        """Run both steps."""
        self.evaluate(name)
        return self.promote(name)

    @property
    def verdict(self) -> Verdict:
        """The verdict of the step promote."""
        return Promotion(self.folder / "promotion").verdict()

    def _write_data(self) -> None:
        dataset, (images, labels) = self.folder / "dataset", self.test
        Preprocessing(image_shape=(8, 8, 1), dtype="float32", scale=self.scale).save(
            dataset / "preprocessing.json"
        )
        np.save(dataset / "test_x.npy", images)
        np.save(dataset / "test_y.npy", labels)
        DatasetInfo(
            kind="npz",
            classes=CLASSES,
            inputs={"x": InputInfo(shape=(8, 8, 1), dtype="float32")},
            splits={"test": len(labels)},
            fingerprint=f"{len(self.train[1]):064d}",
            source="",
        ).save(dataset)

    def _write_models(self) -> None:
        weights, bias = fit_linear(self.train[0] * self.scale, self.train[1])
        onnx = self.folder / "onnx"
        for name in ("fp32", "ptq", "qat"):
            write_linear(onnx / f"{name}.onnx", weights, bias, 16 * self.scale, name != "fp32")
        (onnx / "export.json").write_text(json.dumps({"qat": {"verification": []}}))
        (onnx / "analysis.json").write_text(json.dumps({"findings": []}))
        logits = self.test[0].reshape(-1, 64) * self.scale @ weights + bias
        baseline = self.folder / "baseline"
        np.save(baseline / "predictions.npy", logits.astype(np.float32))
        (baseline / "model.keras").write_bytes(b"the float model")
        (baseline / "model.json").write_text(json.dumps({"name": "linear"}))


def digits(seed: int = 0) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the digits of scikit-learn in two parts: 1000 to learn from, 797 to test on."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    pixels = images[order].reshape(-1, 8, 8, 1).astype(np.float32)
    answers = labels[order].astype(np.int64)
    return (pixels[:1000], answers[:1000]), (pixels[1000:], answers[1000:])


def fit_linear(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit a linear classifier by ridge regression."""
    features = np.c_[images.reshape(len(images), 64), np.ones(len(images))].astype(np.float64)
    targets = np.eye(10)[labels]
    penalty = 0.1 * np.eye(65)
    solution = np.linalg.solve(features.T @ features + penalty, features.T @ targets)
    return solution[:64].astype(np.float32), solution[64].astype(np.float32)


def write_linear(
    path: Path, weights: np.ndarray, bias: np.ndarray, largest: float, int8: bool
) -> None:
    """Write a linear classifier as one convolution, in FP32 or with Q/DQ pairs."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    kernel = weights.T.reshape(10, 1, 8, 8)
    scales = (np.abs(kernel).max(axis=(1, 2, 3)) / 127).astype(np.float32)
    constants = {"bias": bias, "shape": np.array([0, 10], np.int64)}
    nodes = []
    if int8:
        constants |= {
            "input_scale": np.float32(largest / 127),
            "input_zero": np.int8(0),
            "scales": scales,
            "zeros": np.zeros(10, np.int8),
            "kernel": np.round(kernel / scales[:, None, None, None]).astype(np.int8),
        }
        pair = ["input_scale", "input_zero"]
        nodes += [
            helper.make_node("QuantizeLinear", ["input", *pair], ["input_q"]),
            helper.make_node("DequantizeLinear", ["input_q", *pair], ["x"]),
            helper.make_node("DequantizeLinear", ["kernel", "scales", "zeros"], ["w"], axis=0),
        ]
    else:
        constants["w"] = kernel
    nodes += [
        helper.make_node("Conv", ["x" if int8 else "input", "w", "bias"], ["y"]),
        helper.make_node("Reshape", ["y", "shape"], ["logits"]),
    ]
    tensors = [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        tensors,
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )


def _checks_left_out() -> Any:
    """Leave out the checks in fresh processes: they cost seconds, and are tested elsewhere."""
    from unittest.mock import patch

    passed = FileCheck(passed=True, message="left out")
    return patch(
        "qatline.components.steps.evaluate.check_in_fresh_process", lambda *_, **__: passed
    )
