"""Every network of keras.applications through the whole library, with TensorRTQDQCase: one table.

For each builder, with random weights: plan, apply, calibrate, all quantizers off (bit-identical to the original), save
and load, clone, one training step, export, parity with ONNX Runtime, analysis.

    uv run python benchmarks/applications.py                      # all of them, an hour or more on two cores
    uv run python benchmarks/applications.py --only ResNet50 --only VGG16

Each network runs in a process of its own, so that memory stays bounded and a crash costs one row. Results go to
``benchmarks/results/applications.json`` and ``.md``; a run with ``--only`` replaces the rows that it computes.

Random weights as Keras makes them give nearly the same output for every image, so that equal labels would say
nothing. So normalizations get random parameters (some scales negative) and the statistics of real activations, and
the last layer is fitted by ridge regression, to the quantized network's features, to give each image its own class.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "applications.json"
SHARED = Path(os.environ.get("QATLINE_SHARED_DATA", HERE.parent.parent / "shared" / "data"))
LARGER = ("Inception", "Xception")
SAMPLES = 64


def image_size(name: str) -> int:
    """Return the side of the images for a network: 64, or 96 where the builder asks for 75 pixels or so."""
    return 96 if name.startswith(LARGER) else 64


def builders() -> dict[str, Callable[..., Any]]:
    """Return every builder in keras.applications, by name."""
    import keras

    return {
        name: value
        for name, value in vars(keras.applications).items()
        if callable(value) and "weights" in inspect.signature(value).parameters
    }


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
        if layer.scale:
            sign = np.where(rng.uniform(size=layer.gamma.shape) < 0.05, -1, 1)
            layer.gamma.assign(rng.uniform(0.5, 1.5, layer.gamma.shape) * sign)
        if layer.center:
            layer.beta.assign(rng.normal(0, 0.2, layer.beta.shape))
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


def fit_head(model: Any, quantized: Any, images: np.ndarray) -> None:
    """Let the last layer of both models give image number i the class i."""
    import keras

    rng = np.random.default_rng(2)
    head = [layer for layer in model.layers if hasattr(layer, "kernel") and layer.bias is not None][-1]
    wrapper = quantized.get_layer(f"quant_{head.name}")
    found = _outputs(keras.Model(quantized.input, wrapper.input), images)
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

        copy = keras.models.clone_model(self.quantized)
        copy.set_weights(self.quantized.get_weights())
        return {"clone_difference": self._difference(copy)}

    def _difference(self, model: Any) -> float:
        received = model(self.images[:8], training=False).numpy()
        return float(np.abs(received.astype(np.float64) - self.quantized_output).max())

    def export(self) -> dict[str, Any]:
        """Export to ONNX, which verifies the file against the plan."""
        from qat_lib import export_onnx

        report = export_onnx(self.quantized, self.folder / "model.onnx", plan=self.quantization_plan)
        return {
            "onnx_bytes": report.bytes,
            "float_bytes": 4 * self.model.count_params(),
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
            labels = _outputs(self.quantized, images).argmax(axis=1)
            rows[kind] = {
                "passed": report.passed,
                "samples": report.samples,
                "labels_equal": report.labels_equal,
                "ties": report.ties,
                "largest_difference": report.largest_difference,
                "mean_difference": report.mean_difference,
                "magnitude": report.magnitude,
                "different_labels_in_keras": len(set(labels.tolist())),
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
    *("clone", "export", "parity", "analyze", "train"),
)


def run_case(name: str) -> dict[str, Any]:
    """Return the row of one network of keras.applications."""
    builder = builders()[name]
    with tempfile.TemporaryDirectory() as folder:
        case = Case(Path(folder), lambda s: builder(weights=None, input_shape=s), image_size(name), SAMPLES)
        return {"name": name, **run_stages(case)}


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


def run_in_child(name: str, timeout: int) -> dict[str, Any]:
    """Return the row of one network, computed in a process of its own."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, __file__, "--child", name, "--out", file.name]
        started = time.perf_counter()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            return {"name": name, "error": f"took longer than {timeout} s", "seconds": {}}
        text = Path(file.name).read_text()
        if not text:
            tail = " ".join(done.stderr.strip().splitlines()[-3:])
            return {"name": name, "error": f"the process ended with {done.returncode}: {tail}", "seconds": {}}
        return {**json.loads(text), "wall_seconds": round(time.perf_counter() - started, 1)}


def problems(row: dict[str, Any]) -> list[str]:
    """Return what is wrong in a row; an empty list is what must hold."""
    if "error" in row:
        return [row["error"]]
    parity = row["parity"].values()
    checks = {
        "differs when off": not row["off_identical"],
        "differs after loading": row["load_difference"] != 0.0,
        "differs after cloning": row["clone_difference"] != 0.0,
        "loss is not finite": not np.isfinite(row["loss"]),
        f"no gradient: {len(row['without_gradient'])}": bool(row["without_gradient"]),
        "no parity": not all(p["passed"] for p in parity),
        f"{row['analysis']['errors']} error findings": row["analysis"]["errors"] > 0,
    }
    return [text for text, wrong in checks.items() if wrong]


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table, with the findings and reasons spelled out below it."""
    head = (
        "network",
        "pixels",
        "layers",
        "quantizers: activations + weights",
        "tied groups",
        "Q/DQ pairs in ONNX",
        "INT8 / weighted layers",
        "INT8 share of MACs",
        "fused / all Adds",
        "findings: errors, warnings, infos",
        "labels equal: random, real",
        "largest difference",
        "ONNX / FP32 bytes",
        "plan + apply, s",
        "verdict",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['name']} |" + " |" * (len(head) - 2) + f" {row['error'][:200]} |")
        else:
            lines.append("| " + " | ".join(_cells(row)) + " |")
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> list[str]:
    kinds, found, parity = row["quantizers"], row["analysis"], row["parity"]
    equal = ", ".join(
        f"{p['labels_equal']}/{p['samples']}" + (f" ({p['ties']} ties)" if p["ties"] else "") for p in parity.values()
    )
    return [
        row["name"],
        str(row["pixels"]),
        str(row["layers"]),
        f"{kinds['activation'] + kinds.get('internal', 0)} + {kinds['weight']}",
        str(row["groups"]),
        f"{row['pairs']['activations']} + {row['pairs']['weights']}",
        f"{found['int8_layers']} / {found['weighted_layers']}",
        f"{100 * found['int8_macs_share']:.1f}%",
        f"{found['fused_adds']} / {found['adds']}",
        f"{found['errors']}, {found['warnings']}, {found['infos']}",
        equal,
        f"{max(p['largest_difference'] for p in parity.values()):.1e}",
        f"{row['onnx_bytes'] / row['float_bytes']:.2f}",
        f"{row['seconds']['plan'] + row['seconds']['apply']:.1f}",
        "; ".join(problems(row)) or "ok",
    ]


def skipped_table(rows: list[dict[str, Any]]) -> str:
    """Return the layers that were left alone, by reason, and the codes of the findings, as a Markdown table."""
    done = [row for row in rows if "error" not in row]
    reasons = sorted({reason for row in done for reason in row["skipped"]})
    lines = ["| network | " + " | ".join(reasons) + " | warnings | infos |", "|" + " --- |" * (len(reasons) + 3)]
    for row in done:
        codes = [
            ", ".join(f"{code} x {count}" for code, count in row["findings"].get(severity, {}).items()) or "-"
            for severity in ("warning", "info")
        ]
        counts = [str(row["skipped"].get(reason, 0)) for reason in reasons]
        lines.append("| " + " | ".join([row["name"], *counts, *codes]) + " |")
    return "\n".join(lines)


def write_results(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the rows as JSON and, beside it, as Markdown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")
    text = (
        "# keras.applications with TensorRTQDQCase\n\n"
        "Written by `benchmarks/applications.py`; random weights. A verdict of `ok` means: bit-identical to the\n"
        "original with all quantizers off; difference 0.0 after save and load and after `clone_model`; one training\n"
        "step with a finite loss and a gradient for every trainable weight; the exported file verified against the\n"
        "plan; ONNX Runtime and Keras agree on every label but ties; no error finding.\n\n"
        f"{table(rows)}\n\n## Layers left alone, by reason, and findings by code\n\n{skipped_table(rows)}\n"
    )
    path.with_suffix(".md").write_text(text)


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", help="a builder's name; may be given several times")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file; the Markdown goes beside it")
    parser.add_argument("--timeout", type=int, default=3600, help="seconds for one network")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        options.out.write_text(json.dumps(run_case(options.child)))
        return 0
    known = list(builders())
    wanted = options.only or known
    if unknown := sorted(set(wanted) - set(known)):
        parser.error(f"unknown builder {unknown[0]}; known: {', '.join(known)}")
    rows = {row["name"]: row for row in json.loads(options.out.read_text())} if options.out.is_file() else {}
    for name in wanted:
        rows[name] = run_in_child(name, options.timeout)
        write_results([rows[n] for n in known if n in rows], options.out)
        print(f"{name}: {'; '.join(problems(rows[name])) or 'ok'} ({rows[name].get('wall_seconds')} s)", flush=True)
    return int(any(problems(row) for row in rows.values()))


if __name__ == "__main__":
    raise SystemExit(main())
