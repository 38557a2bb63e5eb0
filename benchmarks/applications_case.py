"""The stages of one network for ``applications.py`` and the tests."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import applications_figures as figures
import numpy as np
from applications_images import random_images, real_images
from applications_weights import features, fit_head, head_of, randomize

STATISTICS = 16
"""Images from which normalizations get their statistics, however few a case then runs on."""


class Case:
    """One network's stages; each method returns its fields of the row.

    Args:
        folder: folder for files that the stages hand on.
        make: makes the network from its input shape.
        size: side of the images.
        samples: number of random images, and of photographs where they are at hand.
    """

    stages: Sequence[str] = ()
    """Stages other than ``STAGES``."""

    def __init__(
        self, folder: Path, make: Callable[[tuple[int, int, int]], Any], size: int, samples: int
    ) -> None:
        self.folder = folder
        self.make = make
        self.size = size
        self.samples = samples

    def build(self) -> dict[str, Any]:
        """Build the network with random weights that are worth quantizing."""
        import keras

        keras.utils.set_random_seed(0)
        self.model = self.make((self.size, self.size, 3))
        own = any(
            isinstance(x, keras.layers.Rescaling | keras.layers.Normalization)
            for x in self.model.layers
        )
        low, high = (0.0, 255.0) if own else (-1.0, 1.0)
        images = random_images(max(self.samples, STATISTICS), self.size, low, high)
        self.images = images[: self.samples]
        self.photographs = real_images(self.samples, self.size, low, high)
        randomize(self.model, images[:STATISTICS])
        return {
            "layers": len(self.model.layers),
            "parameters": self.model.count_params(),
            "pixels": self.size,
        }

    def export_float(self) -> dict[str, Any]:
        """Fit the original's last layer, export it, and compare with Keras.

        It is fitted to its own features; the comparison is on the random images.
        """
        from qat_lib import check_parity, export_onnx

        head = head_of(self.model)
        fit_head([head], features(self.model, head.input, self.images), logit=4)
        report = export_onnx(self.model, self.folder / "float.onnx")
        parity = check_parity(self.model, report.path, self.images, batch_size=16)
        report.path.unlink()
        return {
            "float_bytes": report.bytes,
            "float_parity": {
                "passed": parity.passed,
                "largest_difference": parity.largest_difference,
            },
        }

    def plan(self) -> dict[str, Any]:
        """Plan with TensorRTQDQCase."""
        return self.planned(float_outputs=False)

    def planned(self, *, float_outputs: bool) -> dict[str, Any]:
        """Plan with TensorRTQDQCase."""
        from qat_lib import TensorRTQDQCase, plan_quantization

        case = TensorRTQDQCase(float_outputs=float_outputs)
        self.quantization_plan = plan = plan_quantization(self.model, custom_qdq_cases=[case])
        return {
            "quantizers": dict(Counter(entry.kind for entry in plan.quantizers)),
            "groups": len({entry.group for entry in plan.quantizers} - {None}),
            "skipped": dict(Counter(skipped.reason for skipped in plan.skipped)),
        }

    def apply(self) -> dict[str, Any]:
        """Apply the plan."""
        from qat_lib import apply_plan

        self.quantized = apply_plan(self.model, self.quantization_plan)
        return {}

    def calibrate(self) -> dict[str, Any]:
        """Calibrate on at most 16 images, then fit both last layers.

        Both models' last layers are fitted to the quantized features.
        """
        from qat_lib import calibrate

        calibrate(self.quantized, self.images[:16], method="max", batch_size=8)
        known = [self.images] if self.photographs is None else [self.images, self.photographs]
        head = head_of(self.model)
        wrapper = self.quantized.get_layer(f"quant_{head.name}")
        found = features(self.quantized, wrapper.input, np.concatenate(known))
        fit_head([head, wrapper.layer], found, logit=30)
        self.expected = self.answers(self.model)
        self.quantized_output = self.answers(self.quantized)
        return {
            "quantization_changes_output": bool(
                not np.array_equal(self.quantized_output, self.expected)
            )
        }

    def answers(self, model: Any) -> np.ndarray:
        """Return a model's outputs for eight images."""
        return np.asarray(model(self.images[:8], training=False))

    def off(self) -> dict[str, Any]:
        """Compare with the original while every quantizer is off."""
        from qat_lib import model_quantizers

        quantizers = model_quantizers(self.quantized).values()
        for quantizer in quantizers:
            quantizer.disable()
        received = self.answers(self.quantized)
        for quantizer in quantizers:
            quantizer.enable()
        return {"off_identical": bool(np.array_equal(received, self.expected))}

    def save_and_load(self) -> dict[str, Any]:
        """Save, load and compare."""
        from qat_lib import load_model

        path = self.folder / "model.keras"
        self.quantized.save(path)
        loaded = load_model(path)
        path.unlink()
        return {"load_difference": self._difference(loaded)}

    def clone(self) -> dict[str, Any]:
        """Clone with Keras's own function and compare."""
        import keras

        from qat_lib.keras.apply.recursion import deep_graphs

        with deep_graphs():
            copy = keras.models.clone_model(self.quantized)
        copy.set_weights(self.quantized.get_weights())
        return {"clone_difference": self._difference(copy)}

    def _difference(self, model: Any) -> float:
        received = self.answers(model)
        return float(np.abs(received.astype(np.float64) - self.quantized_output).max())

    def export(self) -> dict[str, Any]:
        """Export to ONNX, which verifies the file against the plan."""
        from qat_lib import export_onnx

        report = export_onnx(
            self.quantized, self.folder / "model.onnx", plan=self.quantization_plan
        )
        return {
            "onnx_bytes": report.bytes,
            "opset": report.opset,
            "pairs": figures.pairs(report.path),
            "verification": dict(Counter(finding.severity for finding in report.findings)),
        }

    def parity(self) -> dict[str, Any]:
        """Compare ONNX Runtime with Keras on random images and on photographs."""
        found = {"random": self.images, "real": self.photographs}
        path = self.folder / "model.onnx"
        known = {kind: images for kind, images in found.items() if images is not None}
        return {
            "parity": {
                kind: figures.parity(self.quantized, path, images) for kind, images in known.items()
            }
        }

    def analyze(self) -> dict[str, Any]:
        """Predict the engine."""
        from qat_lib import analyze_onnx

        return figures.analysis(analyze_onnx(self.folder / "model.onnx"))

    def train(self) -> dict[str, Any]:
        """Run one training step and check that its values are finite.

        The loss is finite and every trainable weight gets a finite gradient.
        """
        import keras

        labels = np.arange(4) % self.expected.shape[1]

        def loss(outputs: Any) -> Any:
            losses = keras.losses.sparse_categorical_crossentropy(labels, outputs)
            return keras.ops.mean(losses)

        return figures.training_step(self.quantized, self.images[:4], loss)


STAGES = (
    *("build", "export_float", "plan", "apply", "calibrate", "off"),
    *("save_and_load", "clone", "export", "parity", "analyze", "train"),
)


def run_stages(case: Case, stages: Sequence[str] = ()) -> dict[str, Any]:
    """Return the stages' results for a network.

    A stage that fails is the last, and its error is in the row. ``seconds`` are CPU seconds of each
    stage, which say the same on a busy machine.
    """
    row: dict[str, Any] = {"seconds": {}}
    for stage in stages or case.stages or STAGES:
        started = time.process_time()
        try:
            row.update(getattr(case, stage)())
        except Exception as error:  # noqa: BLE001  # one row of the table says what went wrong, the rest goes on
            row["error"] = f"{stage}: {type(error).__name__}: {error}"
            break
        finally:
            row["seconds"][stage] = round(time.process_time() - started, 2)
    return row
