"""Figures of the stages of ``applications.py`` for a row.

They concern outputs, Q/DQ pairs, parity, findings and gradients. Deep networks with random weights
can be chaotic: one activation that rounds to the neighbouring INT8 value changes the output. How
far that goes is measured beside the parity, by Keras alone, with inputs that moved by a float's
rounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MOVED = 1e-6  # relative; eight units in the last place of a float32


def outputs(model: Any, images: np.ndarray) -> np.ndarray:
    """Return what a model gives for images, 16 at a time."""
    parts = [model(images[i : i + 16], training=False).numpy() for i in range(0, len(images), 16)]
    return np.concatenate(parts)


def pairs(path: Path) -> dict[str, int]:
    """Count a file's Q/DQ pairs of activations and weights.

    Activations count by QuantizeLinear, weights by lone DequantizeLinear nodes.
    """
    import onnx

    nodes = onnx.load(str(path), load_external_data=False).graph.node
    made = {output for node in nodes if node.op_type == "QuantizeLinear" for output in node.output}
    lone = [n for n in nodes if n.op_type == "DequantizeLinear" and n.input[0] not in made]
    return {"activations": len(made), "weights": len(lone)}


def parity(model: Any, path: Path, images: np.ndarray) -> dict[str, Any]:
    """Return a file's parity with ``model``, and Keras's with itself.

    The model is the quantized one.
    """
    from qat_lib import check_parity

    report = check_parity(model, path, images, batch_size=16)
    still = outputs(model, images)
    moved = outputs(model, images * np.float32(1 + MOVED))
    return {
        "passed": report.passed,
        "samples": report.samples,
        "labels_equal": report.labels_equal,
        "ties": report.ties,
        "largest_difference": report.largest_difference,
        "mean_difference": report.mean_difference,
        "magnitude": report.magnitude,
        "different_labels_in_keras": len(set(still.argmax(axis=1).tolist())),
        "difference_of_keras_alone": float(np.abs(moved - still).max()),
    }


def analysis(report: Any) -> dict[str, Any]:
    """Return an analysis as plain data.

    The data is its summary, its findings by code, and the layers in float.
    """
    codes: dict[str, Counter[str]] = {}
    for finding in report.findings:
        codes.setdefault(finding.severity, Counter())[finding.code] += 1
    return {
        "analysis": report.summary(),
        "findings": {severity: dict(sorted(found.items())) for severity, found in codes.items()},
        "warnings": [str(f) for f in report.findings if f.severity in ("error", "warning")],
        "float_layers": [x.keras_layer for x in report.layers if x.precision != "int8"],
    }


def training_step(model: Any, images: Any, loss_of: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a training step's loss and the weights without finite gradient.

    Args:
        model: the quantized model.
        images: its inputs.
        loss_of: returns the loss of its outputs.
    """
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = loss_of(model(images, training=True))
    variables = model.trainable_variables
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
