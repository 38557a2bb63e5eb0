"""A small run's step directories, with every file the report reads."""

from __future__ import annotations

import io
import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from qat_lib.preprocessing import Preprocessing
from qatline.components.artifacts import Verdict
from qatline.components.artifacts.promotion import Reason
from qatline.components.report import ReportFolders
from qatline.components.store.manifest import describe

CLASSES = [str(digit) for digit in range(10)]
REASON = Reason(
    check="quality_drop",
    passed=True,
    expected="at most 1.00% below FP32 Keras",
    received="97.78% against 97.50%",
    message="The INT8 engine is no worse than FP32 Keras (97.78% against 97.50%).",
)
VERDICT = Verdict(verdict="promote", reasons=(REASON,))


def write_sample_run(root: Path, *, classes: list[str] | None = None) -> ReportFolders:
    """Write the directories under ``root`` and return them."""
    names = classes or CLASSES
    folders = ReportFolders(**{field.name: root / field.name for field in fields(ReportFolders)})
    for _, path in folders.items():
        path.mkdir(parents=True)
    blocks = [
        "stem",
        "block1_conv1",
        "block1_conv2",
        "block2_conv1",
        "block2_conv2",
        "block2_project",
        "head",
    ]
    write(folders.dataset / "dataset.json", dataset(names))
    preprocessing = Preprocessing(
        image_shape=(8, 8, 1), dtype="uint8", scale=0.0625, mean=(0.0,), std=(1.0,), color="gray"
    )
    preprocessing.save(folders.dataset / "preprocessing.json")
    write(
        folders.baseline / "model.json",
        {"name": "resnet_digits", "parameters": 78042, "input_shape": [8, 8, 1]},
    )
    write(folders.baseline / "history.json", history(20, 0.02))
    write(folders.qat / "history.json", history(4, 0.9))
    for folder, factor in ((folders.ptq, 1.0), (folders.qat, 1.03)):
        write(folder / "ranges.json", ranges(blocks, factor))
        write(folder / "plan.json", plan(blocks))
    write(folders.onnx / "plan.json", plan(blocks))
    write(folders.onnx / "export.json", {name: export(name) for name in ("fp32", "ptq", "qat")})
    write(folders.onnx / "analysis.json", {"layers": [layer()], "findings": [finding()]})
    onnx.save(graph(), str(folders.onnx / "qat.onnx"))
    for variant in ("fp32", "ptq", "qat"):
        write(
            folders.engines / f"{variant}.engine.json",
            {"backend": "openvino", "backend_version": "2026.4.0"},
        )
        stem = {"name": "stem", "kind": "Convolution", "nodes": ["quant_stem/Conv"]}
        layers = [{**stem, "precision": "int8", "weighted": True}]
        write(folders.engines / f"{variant}.layers.json", {"backend": "openvino", "layers": layers})
    write(folders.evaluation / "evaluation.json", evaluation(names))
    (folders.evaluation / "worst_samples").mkdir()
    for index in range(3):
        (folders.evaluation / "worst_samples" / f"qat_engine_{index}.png").write_bytes(png(index))
    settings = {"qat": {"epochs": 4, "learning_rate": 2e-4}}
    write(
        folders.qat / "manifest.json",
        describe(folders.qat, seconds=12.5, settings=settings).to_dict(),
    )
    return folders


def write(path: Path, content: Any) -> None:
    """Write JSON."""
    path.write_text(json.dumps(content), encoding="utf-8")


def dataset(names: list[str]) -> dict[str, Any]:
    """``dataset.json``."""
    splits = {"train": 924, "calibration": 256, "validation": 257, "test": 360}
    facts = {"kind": "digits", "source": "sklearn.datasets.load_digits", "fingerprint": "0f" * 32}
    return {**facts, "classes": names, "image_shape": [8, 8, 1], "dtype": "uint8", "splits": splits}


def history(epochs: int, start: float) -> list[dict[str, float]]:
    """``history.json``."""
    rows = []
    for epoch in range(epochs):
        done = 1 - (1 - start) * math.exp(-epoch / 4)
        accuracy = 0.1 + 0.88 * done
        losses = {"loss": 2.3 * (1 - done) + 0.05, "val_loss": 2.2 * (1 - done) + 0.09}
        rows.append(
            {"epoch": epoch, "accuracy": accuracy, "val_accuracy": accuracy - 0.01, **losses}
        )
    return rows


def ranges(blocks: list[str], factor: float) -> dict[str, Any]:
    """``ranges.json``."""
    generator = np.random.default_rng(7)
    found: dict[str, Any] = {}
    for index, block in enumerate(blocks):
        values = np.abs(generator.normal(0, 1 + index * 0.3, 20000))
        counts, edges = np.histogram(values, bins=256, range=(0, float(values.max())))
        found[f"{block}_input"] = {
            "tensor": f"{block}:0",
            "kind": "activation",
            "amax": float(np.percentile(values, 99.9)) * factor,
            "observed_max": float(values.max()),
            "histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
        }
        amax = np.abs(generator.normal(0.4, 0.1, (1, 1, 1, 16))) * factor
        found[f"{block}_kernel"] = {
            "tensor": f"{block}/kernel",
            "kind": "weight",
            "amax": amax.ravel().tolist(),
            "observed_max": float(amax.max()),
            "histogram": None,
        }
    return found


def plan(blocks: list[str]) -> dict[str, Any]:
    """``plan.json``."""
    quantizers = []
    for block in blocks:
        entry = {
            "consumers": [{"layer": block, "input": 0}],
            "group": None,
            "num_bits": 8,
            "range_policy": "frozen",
        }
        quantizers.append(
            {
                **entry,
                "name": f"{block}_input",
                "kind": "activation",
                "tensor": f"{block}:0",
                "channel_axes": None,
                "reason": "input of a convolution",
            }
        )
        quantizers.append(
            {
                **entry,
                "name": f"{block}_kernel",
                "kind": "weight",
                "tensor": f"{block}/kernel",
                "consumers": [],
                "channel_axes": [3],
                "reason": "weight of a convolution",
            }
        )
    skipped = [
        {
            "layer": "softmax",
            "class_name": "Activation",
            "reason": "not_supported",
            "detail": "no INT8 softmax",
        }
    ]
    return {
        "version": 1,
        "model": "resnet_digits",
        "mode": "full",
        "quantizers": quantizers,
        "skipped": skipped,
        "wrapped": [],
    }


def export(variant: str) -> dict[str, Any]:
    """One entry of ``export.json``."""
    size = 310_000 if variant == "fp32" else 84_000
    return {
        "bytes": size,
        "seconds": 3.2,
        "opset": 17,
        "verification": [],
        "parity": {"samples": 360, "labels_equal": 360, "largest_difference": 1e-6},
    }


def layer() -> dict[str, Any]:
    """One weighted layer of the analysis."""
    facts = {"name": "quant_stem/Conv", "keras_layer": "stem", "op_type": "Conv"}
    return {**facts, "precision": "int8", "macs_share": 0.125}


def finding() -> dict[str, Any]:
    """One finding of the analysis."""
    return {
        "code": "V21",
        "severity": "warning",
        "node": "quant_stem/Conv",
        "keras_layer": "stem",
        "message": "one reformat at the input",
        "advice": "Export with a channels-first input.",
    }


def evaluation(names: list[str]) -> dict[str, Any]:
    """``evaluation.json``."""
    count = len(names)
    rows = {
        "fp32": row(0.975, 1_000_000, None, 0),
        "fp32_engine": row(0.975, 420_000, 0.062, 0),
        "ptq_engine": row(0.9694, 160_000, 0.041, 11),
        "qat_engine": row(0.9778, 160_000, 0.04, 11),
    }
    confusion = (np.eye(count, dtype=int) * 36 + np.eye(count, k=1, dtype=int)).tolist()
    groups = [
        {
            "name": name,
            "samples": 36,
            "values": {"fp32": 0.95, "qat_engine": 0.95 + (index % 3 - 1) * 0.02},
        }
        for index, name in enumerate(names)
    ]
    worst = [
        {
            "index": index,
            "difference": 0.3 - index * 0.05,
            "file": f"worst_samples/qat_engine_{index}.png",
            "label": names[index % count],
            "fp32": names[index % count],
            "engine": names[(index + 1) % count],
        }
        for index in range(3)
    ]
    return {
        "samples": 360,
        "results": rows,
        "details": {"qat_engine": {"confusion": confusion}},
        "groups": groups,
        "latency": {
            name: [
                benchmark(1, values["latency_ms_p50"]),
                benchmark(32, values["latency_ms_p50"] * 20),
            ]
            for name, values in rows.items()
            if values["latency_ms_p50"] is not None
        },
        "agreement": {name: {"same": 0.99, "largest_difference": 0.03} for name in rows},
        "worst_samples": worst,
        "infrastructure_check": {
            "passed": True,
            "message": "32 requests answered as the reference does.",
        },
    }


def row(accuracy: float, size: int, latency: float | None, int8: int) -> dict[str, Any]:
    """One row of the results."""
    tail = None if latency is None else latency * 1.6
    rate = None if latency is None else 32 / latency * 200
    speed = {
        "latency_ms_p50": latency,
        "latency_ms_p99": tail,
        "throughput": rate,
        "batch_size": 32,
    }
    return {
        "accuracy": accuracy,
        "bytes": size,
        **speed,
        "int8_layers": int8,
        "weighted_layers": 11,
    }


def benchmark(batch_size: int, milliseconds: float) -> dict[str, Any]:
    """One benchmark of an engine."""
    percentiles = {
        "p50": milliseconds,
        "p90": milliseconds * 1.2,
        "p99": milliseconds * 1.6,
        "mean": milliseconds,
    }
    return {
        "batch_size": batch_size,
        "end_to_end": percentiles,
        "throughput": batch_size / milliseconds * 1000,
    }


def png(seed: int) -> bytes:
    """A picture of 8 x 8 pixels."""
    pixels = np.random.default_rng(seed).integers(0, 255, (8, 8), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG")
    return stream.getvalue()


def graph() -> onnx.ModelProto:
    """A residual block with a projection, INT8 weights and one float layer.

    Two readers share one pair; the float layer is at the end.
    """
    builder = _Graph()
    x = builder.pair("input", "input", 1.0)
    x = builder.conv(x, "stem", stride=1)
    x = builder.node("Relu", [x], "quant_stem/Relu")
    x = builder.pair(x, "block1_input", 2.5)
    y = builder.conv(x, "block1_conv1", stride=2)
    y = builder.pair(builder.node("Relu", [y], "quant_block1_conv1/Relu"), "block1_mid", 1.9)
    y = builder.conv(y, "block1_conv2", stride=1)
    short = builder.pair(builder.conv(x, "block1_project", stride=2), "block1_residual", 3.1)
    y = builder.node("Add", [y, short], "quant_block1_add/Add")
    y = builder.node("Relu", [y], "block1_out/Relu")
    y = builder.node(
        "GlobalAveragePool", [builder.pair(y, "pool_input", 2.2)], "quant_pool/GlobalAveragePool"
    )
    y = builder.node("Flatten", [y], "flatten/Flatten")
    builder.constants.append(numpy_helper.from_array(np.ones((8, 10), np.float32), "head_w"))
    builder.node("MatMul", [y, "head_w"], "head/MatMul", output="output")
    value = helper.make_tensor_value_info
    proto = helper.make_graph(
        builder.nodes,
        "sample",
        [value("input", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [value("output", TensorProto.FLOAT, ["n", 10])],
        builder.constants,
    )
    return helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)])


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def node(
        self, op: str, inputs: list[str], name: str, output: str = "", **attributes: Any
    ) -> str:
        result = output or f"{name}:0"
        self.nodes.append(helper.make_node(op, inputs, [result], name=name, **attributes))
        return result

    def constant(self, name: str, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def pair(self, tensor: str, name: str, amax: float) -> str:
        scale = self.constant(f"{name}/scale", np.float32(amax / 127))
        zero = self.constant(f"{name}/zero", np.int8(0))
        quantized = self.node("QuantizeLinear", [tensor, scale, zero], f"{name}/QuantizeLinear")
        return self.node("DequantizeLinear", [quantized, scale, zero], f"{name}/DequantizeLinear")

    def conv(self, tensor: str, layer: str, stride: int) -> str:
        weights = self.constant(f"{layer}/w", np.ones((8, 8, 3, 3), np.int8))
        scale = self.constant(f"{layer}/w_scale", np.full(8, 0.01, np.float32))
        zero = self.constant(f"{layer}/w_zero", np.zeros(8, np.int8))
        kernel = self.node(
            "DequantizeLinear", [weights, scale, zero], f"quant_{layer}/DequantizeLinear", axis=0
        )
        shape = {"kernel_shape": [3, 3], "strides": [stride, stride], "pads": [1, 1, 1, 1]}
        return self.node("Conv", [tensor, kernel], f"quant_{layer}/Conv", **shape)
