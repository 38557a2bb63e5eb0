"""One network on its way through the library, stage by stage: what ``applications.py`` runs, and the tests too.

Random weights as Keras makes them give nearly the same output for every image, so that equal labels would say
nothing. So normalizations get random parameters (some scales negative) and the statistics of real activations, and
the last layer is fitted by ridge regression, to the quantized network's features, to give each image its own class.

Deep networks with random weights can be chaotic: one activation that rounds to the neighbouring INT8 value changes the
output. How far that goes is measured beside the parity, by Keras alone, with inputs that moved by a float's rounding.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

MOVED = 1e-6  # relative; eight units in the last place of a float32
SHARED = Path(os.environ.get("QATLINE_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


def random_images(count: int, size: int, low: float, high: float) -> np.ndarray:
    """Return images with coarse structure, so that networks tell them apart, of shape (count, size, size, 3)."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    coarse = rng.uniform(0, 1, (count, 1, 1, 3)) + rng.uniform(-0.5, 0.5, (count, 5, 5, 3))
    fine = rng.uniform(-0.1, 0.1, (count, size, size, 3))
    pixels = np.clip(tf.image.resize(coarse, (size, size), "bicubic").numpy() + fine, 0, 1)
    return np.asarray(low + (high - low) * pixels, np.float32)


def real_images(count: int, size: int, low: float, high: float) -> np.ndarray | None:
    """Return photographs of the CIFAR-10 subset, enlarged; None where the file is not at hand."""
    import tensorflow as tf

    path = SHARED / "cifar10_jpeg_subset.npz"
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as data:
        pictures = next(data[key] for key in data.files if data[key].ndim == 4)[:count]
    return np.asarray(low + (high - low) * tf.image.resize(pictures / 255.0, (size, size)).numpy(), np.float32)


def randomize(model: Any, images: np.ndarray) -> None:
    """Give a model weights with which its outputs depend on the image."""
    import keras

    rng = np.random.default_rng(1)
    norms = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    for layer in norms:
        # In trained networks a residual branch adds little to what passes it by; without that, depth means chaos.
        share = 0.2 if _ends_branch(layer) else 1.0
        if layer.scale:
            sign = np.where(rng.uniform(size=layer.gamma.shape) < 0.05, -1, 1)
            layer.gamma.assign(share * rng.uniform(0.3, 0.9, layer.gamma.shape) * sign)
        if layer.center:
            layer.beta.assign(share * rng.normal(0, 0.5, layer.beta.shape))
    for layer in model._flatten_layers():
        if type(layer).__name__ == "LayerScale":
            layer.gamma.assign(rng.uniform(0.1, 0.5, layer.gamma.shape))
    momenta = [layer.momentum for layer in norms]
    for layer in norms:
        layer.momentum = 0.0
    if norms:
        model(images[:16], training=True)
    for layer, momentum in zip(norms, momenta, strict=True):
        layer.momentum = momentum


def _ends_branch(layer: Any) -> bool:
    """Whether what a layer gives goes to an Add, and there alone."""
    import keras

    while len(layer._outbound_nodes) == 1:
        layer = layer._outbound_nodes[0].operation
        if not isinstance(layer, keras.layers.Dropout | keras.layers.Activation):
            return isinstance(layer, keras.layers.Add)
    return False


def fit_head(model: Any, quantized: Any, images: np.ndarray) -> None:
    """Let the last layer of both models give image number i the class i."""
    import keras

    from qat_lib.recursion import deep_graphs

    rng = np.random.default_rng(2)
    head = [layer for layer in model.layers if hasattr(layer, "kernel") and layer.bias is not None][-1]
    wrapper = quantized.get_layer(f"quant_{head.name}")
    with deep_graphs():
        body = keras.Model(quantized.input, wrapper.input)
    found = _outputs(body, images)
    features = found.reshape(len(images), -1).astype(np.float64)
    mean = features.mean(axis=0)
    centred = features - mean
    gram = centred @ centred.T
    wanted = np.eye(len(images)) * 30
    kernel = rng.normal(0, 1, (features.shape[1], head.kernel.shape[-1]))
    kernel *= 2 / (centred @ kernel).std()
    penalty = 0.1 * np.trace(gram) / len(images) * np.eye(len(images))
    kernel[:, : len(images)] = centred.T @ np.linalg.solve(gram + penalty, wanted)
    bias = -mean @ kernel
    bias[len(images) :] -= 8
    for layer in (head, wrapper.layer):
        layer.kernel.assign(kernel.reshape(layer.kernel.shape))
        layer.bias.assign(bias)


def _outputs(model: Any, images: np.ndarray) -> np.ndarray:
    parts = [model(images[i : i + 16], training=False).numpy() for i in range(0, len(images), 16)]
    return np.concatenate(parts)


class Case:
    """One network on its way through the library; each method is a stage and returns what goes into its row.

    Args:
        folder: folder for files that the stages hand on.
        make: makes the network from its input shape.
        size: side of the images.
        samples: number of random images, and of photographs where they are at hand.
    """

    def __init__(self, folder: Path, make: Callable[[tuple[int, int, int]], Any], size: int, samples: int) -> None:
        self.folder = folder
        self.make = make
        self.size = size
        self.samples = samples

    def build(self) -> dict[str, Any]:
        """Build the network with random weights that are worth quantizing."""
        import keras

        keras.utils.set_random_seed(0)
        self.model = self.make((self.size, self.size, 3))
        own = any(isinstance(x, keras.layers.Rescaling | keras.layers.Normalization) for x in self.model.layers)
        low, high = (0.0, 255.0) if own else (-1.0, 1.0)
        self.images = random_images(self.samples, self.size, low, high)
        self.photographs = real_images(self.samples, self.size, low, high)
        randomize(self.model, self.images)
        return {"layers": len(self.model.layers), "parameters": self.model.count_params(), "pixels": self.size}

    def plan(self) -> dict[str, Any]:
        """Plan with TensorRTQDQCase."""
        from qat_lib import TensorRTQDQCase, plan_quantization

        self.quantization_plan = plan_quantization(self.model, custom_qdq_cases=[TensorRTQDQCase()])
        plan = self.quantization_plan
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
        """Calibrate on at most 16 images, then fit the last layer."""
        from qat_lib import calibrate

        calibrate(self.quantized, self.images[:16], method="max", batch_size=8)
        known = [self.images] if self.photographs is None else [self.images, self.photographs]
        fit_head(self.model, self.quantized, np.concatenate(known))
        self.expected = self.model(self.images[:8], training=False).numpy()
        self.quantized_output = self.quantized(self.images[:8], training=False).numpy()
        return {"quantization_changes_output": bool(not np.array_equal(self.quantized_output, self.expected))}

    def off(self) -> dict[str, Any]:
        """Compare with the original while every quantizer is off."""
        from qat_lib import model_quantizers

        quantizers = model_quantizers(self.quantized).values()
        for quantizer in quantizers:
            quantizer.disable()
        received = self.quantized(self.images[:8], training=False).numpy()
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

        from qat_lib.recursion import deep_graphs

        with deep_graphs():
            copy = keras.models.clone_model(self.quantized)
        copy.set_weights(self.quantized.get_weights())
        return {"clone_difference": self._difference(copy)}

    def _difference(self, model: Any) -> float:
        received = model(self.images[:8], training=False).numpy()
        return float(np.abs(received.astype(np.float64) - self.quantized_output).max())

    def export_float(self) -> dict[str, Any]:
        """Export the original, and compare it with Keras on the random images."""
        from qat_lib import check_parity, export_onnx

        report = export_onnx(self.model, self.folder / "float.onnx")
        parity = check_parity(self.model, report.path, self.images, batch_size=16)
        report.path.unlink()
        return {
            "float_bytes": report.bytes,
            "float_parity": {"passed": parity.passed, "largest_difference": parity.largest_difference},
        }

    def export(self) -> dict[str, Any]:
        """Export to ONNX, which verifies the file against the plan."""
        from qat_lib import export_onnx

        report = export_onnx(self.quantized, self.folder / "model.onnx", plan=self.quantization_plan)
        return {
            "onnx_bytes": report.bytes,
            "opset": report.opset,
            "pairs": _pairs(report.path),
            "verification": dict(Counter(finding.severity for finding in report.findings)),
        }

    def parity(self) -> dict[str, Any]:
        """Compare ONNX Runtime with Keras on random images and on photographs."""
        from qat_lib import check_parity

        found = {"random": self.images, "real": self.photographs}
        rows: dict[str, Any] = {}
        for kind, images in found.items():
            if images is None:
                continue
            report = check_parity(self.quantized, self.folder / "model.onnx", images, batch_size=16)
            outputs = _outputs(self.quantized, images)
            moved = _outputs(self.quantized, images * np.float32(1 + MOVED))
            rows[kind] = {
                "passed": report.passed,
                "samples": report.samples,
                "labels_equal": report.labels_equal,
                "ties": report.ties,
                "largest_difference": report.largest_difference,
                "mean_difference": report.mean_difference,
                "magnitude": report.magnitude,
                "different_labels_in_keras": len(set(outputs.argmax(axis=1).tolist())),
                "difference_of_keras_alone": float(np.abs(moved - outputs).max()),
            }
        return {"parity": rows}

    def analyze(self) -> dict[str, Any]:
        """Predict the engine."""
        from qat_lib import analyze_onnx

        report = analyze_onnx(self.folder / "model.onnx")
        codes: dict[str, Counter[str]] = {}
        for finding in report.findings:
            codes.setdefault(finding.severity, Counter())[finding.code] += 1
        return {
            "analysis": report.summary(),
            "findings": {severity: dict(sorted(found.items())) for severity, found in codes.items()},
            "warnings": [str(f) for f in report.findings if f.severity in ("error", "warning")],
            "float_layers": [x.keras_layer for x in report.layers if x.precision != "int8"],
        }

    def train(self) -> dict[str, Any]:
        """Run one training step: the loss is finite and every trainable weight gets a finite gradient."""
        import tensorflow as tf

        labels = np.arange(4) % self.expected.shape[1]
        with tf.GradientTape() as tape:
            output = self.quantized(self.images[:4], training=True)
            loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(labels, output))
        variables = self.quantized.trainable_variables
        gradients = tape.gradient(loss, [v.value for v in variables])
        missing = [
            v.path
            for v, g in zip(variables, gradients, strict=True)
            if g is None or not np.all(np.isfinite(tf.convert_to_tensor(g)))
        ]
        zero = sum(g is not None and not np.any(tf.convert_to_tensor(g)) for g in gradients)
        return {
            "loss": float(loss),
            "trainable": len(variables),
            "without_gradient": missing,
            "zero_gradients": int(zero),
        }


STAGES = (
    *("build", "plan", "apply", "calibrate", "off", "save_and_load"),
    *("clone", "export_float", "export", "parity", "analyze", "train"),
)


def run_stages(case: Case, stages: Sequence[str] = STAGES) -> dict[str, Any]:
    """Return what the stages say about a network; one that fails is the last, and its error is in the row."""
    row: dict[str, Any] = {"seconds": {}}
    for stage in stages:
        started = time.perf_counter()
        try:
            row.update(getattr(case, stage)())
        except Exception as error:  # noqa: BLE001  # one row of the table says what went wrong, the rest goes on
            row["error"] = f"{stage}: {type(error).__name__}: {error}"
            break
        finally:
            row["seconds"][stage] = round(time.perf_counter() - started, 2)
    return row


def _pairs(path: Path) -> dict[str, int]:
    """Count the Q/DQ pairs of a file: activations by QuantizeLinear, weights by lone DequantizeLinear nodes."""
    import onnx

    nodes = onnx.load(str(path), load_external_data=False).graph.node
    made = {output for node in nodes if node.op_type == "QuantizeLinear" for output in node.output}
    lone = [n for n in nodes if n.op_type == "DequantizeLinear" and n.input[0] not in made]
    return {"activations": len(made), "weights": len(lone)}
