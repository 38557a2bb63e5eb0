"""Draw docs/images/placement.svg: quantizers of a residual block, from three real plans."""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from typing import Any

from tables import ROOT

TARGET = ROOT / "docs" / "images" / "placement.svg"

PLANS = (("no quantizers", "-"), ("weighted layers", None), ("engine's fusions", "auto"))
"""Title of each picture, and its ``custom_qdq_cases``; ``-`` for the float network."""

LAYERS = ("input", "conv1", "norm1", "relu1", "conv2", "norm2", "add", "relu2", "next")
LABELS = {"norm1": "batch norm", "norm2": "batch norm", "relu1": "ReLU", "relu2": "ReLU"}
WIDTH, STEP, LEFT, TOP = 240, 62, 105, 62
STYLE = """
text { font: 13px sans-serif; text-anchor: middle; fill: #1b1f23 }
.title { font-weight: bold }
.layer { fill: #fff; stroke: #6b7680 }
.int8 { fill: #c9ece6; stroke: #00796b }
.edge { fill: none; stroke: #6b7680; stroke-width: 1.5 }
.pair { fill: #00796b }
.pair + text { fill: #fff; font-size: 11px }
"""


def block() -> Any:
    """Return a residual block and the convolution behind it."""
    import keras
    from keras import layers

    x = inputs = keras.Input((8, 8, 16), name="input")
    for number in (1, 2):
        x = layers.Conv2D(16, 3, padding="same", use_bias=False, name=f"conv{number}")(x)
        x = layers.BatchNormalization(name=f"norm{number}")(x)
        if number == 1:
            x = layers.ReLU(name="relu1")(x)
    x = layers.ReLU(name="relu2")(layers.Add(name="add")([x, inputs]))
    return keras.Model(inputs, layers.Conv2D(16, 3, padding="same", name="next")(x), name="block")


def examine(cases: Any) -> tuple[set[tuple[str, int]], set[str]]:
    """Return the quantized inputs of layers by the plan, and the layers in INT8 by the analysis."""
    import numpy as np

    import qat_lib

    if cases == "-":
        return set(), set()
    plan = qat_lib.plan_quantization(block(), "full", None, cases)
    inputs = {(reader.layer, reader.input) for each in plan.quantizers for reader in each.consumers}
    model = qat_lib.apply_plan(block(), plan)
    qat_lib.calibrate(model, np.random.default_rng(0).normal(size=(8, 8, 8, 16)).astype("float32"))
    with tempfile.TemporaryDirectory() as folder:
        qat_lib.export_onnx(model, Path(folder) / "block.onnx")
        nodes = qat_lib.analyze_onnx(Path(folder) / "block.onnx").drawing.nodes
    names = {name for node in nodes if node.precision == "int8" for name in node.names}
    int8 = {name.split("/")[0].removeprefix("quant_") for name in names}
    # A batch norm is folded into the convolution above it.
    return inputs, int8 | {f"norm{name[-1]}" for name in int8 if name.startswith("conv")}


def render() -> str:
    """Return the pictures, side by side."""
    height = TOP + STEP * len(LAYERS)
    size = f'width="{WIDTH * len(PLANS)}" height="{height}" viewBox="0 0 {WIDTH * len(PLANS)} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        "<title>Quantizers of a residual block: none, for weighted layers, for fusions</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH * len(PLANS)}" height="{height}" rx="8" fill="#fff"/>',
    ]
    for place, (title, cases) in enumerate(PLANS):
        parts.append(f'<g transform="translate({place * WIDTH} 0)">')
        parts.append(f'<text class="title" x="{LEFT}" y="26">{title}</text>')
        parts += _picture(*examine(cases))
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _picture(quantized: set[tuple[str, int]], int8: set[str]) -> list[str]:
    parts = []
    rows = {name: TOP + STEP * row for row, name in enumerate(LAYERS)}
    shortcut = LEFT + 95
    # One quantizer serves both readers of the input: it stands before the fork.
    is_shared = {("conv1", 0), ("add", 1)} <= quantized
    fork = rows["input"] + (41 if is_shared else 19)
    parts.append(f'<path class="edge" d="M{LEFT} {fork} H{shortcut} V{rows["add"]} H{LEFT + 55}"/>')
    for above, name in itertools.pairwise(LAYERS):
        parts.append(f'<path class="edge" d="M{LEFT} {rows[above] + 14} V{rows[name] - 14}"/>')
        if (name, 0) in quantized:
            parts += _pair(LEFT, {"conv1": 26 if is_shared else 36}.get(name, 31) + rows[above])
    for name, y in rows.items():
        layer = "next conv" if name == "next" else LABELS.get(name, name)
        kind = "layer int8" if name in int8 else "layer"
        parts.append(
            f'<rect class="{kind}" x="{LEFT - 55}" y="{y - 14}" width="110" height="28" rx="4"/>'
        )
        parts.append(f'<text x="{LEFT}" y="{y + 5}">{layer}</text>')
    return parts


def _pair(x: int, y: int) -> list[str]:
    return [
        f'<rect class="pair" x="{x - 25}" y="{y - 9}" width="50" height="18" rx="9"/>',
        f'<text x="{x}" y="{y + 4}">Q DQ</text>',
    ]


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")
