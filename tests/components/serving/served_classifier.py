"""A small classifier whose ONNX file records all that servers and clients need."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tiny_retraining import write_linear

FORM = {
    "image_shape": [8, 8, 1],
    "dtype": "uint8",
    "scale": 1 / 16,
    "mean": [0.25],
    "std": [0.5],
    "color": "gray",
    "resize": None,
}
CLASSES = ["zero", 'one "1"', *map(str, range(2, 10))]
DECODING = {"kind": "classification", "classes": CLASSES, "probabilities": False}


def write_graph(path: Path, *, decoding: bool = True, seed: int = 0) -> Path:
    """Write a classifier with channels first, whose sums of two products can exceed 16 bits."""
    import onnx

    generator = np.random.default_rng(seed)
    write_linear(
        path,
        generator.normal(size=(64, 10)).astype(np.float32),
        np.zeros(10, np.float32),
        2.0,
        True,
    )
    model = onnx.load(str(path))
    facts = {"layout": {"input": "NCHW"}, "preprocessing": FORM, "classes": CLASSES}
    facts |= {"decoding": DECODING} if decoding else {}
    for name, value in {**facts, "task": "classification"}.items():
        text = value if isinstance(value, str) else json.dumps(value)
        model.metadata_props.add(key=f"qatline.{name}", value=text)
    onnx.save(model, str(path))
    return path
