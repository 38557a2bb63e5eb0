"""OpenVINO latency at batch 1 after qatline, NNCF or ONNX Runtime.

The networks are quantized by each of the three, in one run. Quantized graphs are compiled twice:
with OpenVINO's defaults, and without its code generator for element-wise chains ("snippets"), which
takes residual Adds away from convolutions; ``build_engine`` switches it off for INT8 graphs. The
engines of either way answer in turns, so that whatever else the machine does hits all of them
alike; the figure is the median. Run on a CPU with VNNI or AMX:

    uv run --group bench python benchmarks/export_openvino.py ResNet50 MobileNetV2 EfficientNetB0 --signed

Weights are random (speed does not depend on them) unless ``--weights imagenet`` can download them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import record

SIZE = 224
WAYS: dict[str, dict[str, str]] = {"defaults": {}, "no snippets": {"SNIPPETS_MODE": "DISABLE"}}
"""How quantized graphs are compiled."""
CALIBRATION = 16


def images(count: int) -> np.ndarray:
    """Return random images in the range of the networks' own preprocessing."""
    return np.random.default_rng(0).uniform(-1, 1, (count, SIZE, SIZE, 3)).astype(np.float32)


def export_ours(model: Any, path: Path, target: str, *, unsigned: bool) -> Path:
    """Quantize with qatline and export; print what the export took."""
    import qat_lib

    quantized = qat_lib.quantize_model(
        model, custom_qdq_cases=[qat_lib.TensorRTQDQCase()], unsigned=unsigned
    )
    qat_lib.calibrate(quantized, images(CALIBRATION), method="max", batch_size=4)
    report = qat_lib.export_onnx(quantized, path, target=target)
    print(
        f"  qatline export: {report.seconds:.1f} s, of which conversion {report.conversion_seconds:.1f} s"
    )
    return report.path


def quantize_nncf(fp32: Path) -> Any:
    """Return OpenVINO's own post-training quantization of ``fp32``."""
    import nncf
    import openvino

    model = openvino.Core().read_model(fp32)
    data = nncf.Dataset([x[None] for x in images(CALIBRATION)])
    return nncf.quantize(model, data, subset_size=CALIBRATION)


def quantize_onnxruntime(fp32: Path, folder: Path) -> Path:
    """Return ONNX Runtime's default static quantization of ``fp32``.

    It is U8S8, per tensor.
    """
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            self.items = iter([{name: x[None]} for x in images(CALIBRATION)])

        def get_next(self) -> Any:
            return next(self.items, None)

    import onnxruntime

    name = onnxruntime.InferenceSession(str(fp32)).get_inputs()[0].name
    out = folder / "onnxruntime.onnx"
    quantize_static(
        str(fp32),
        str(out),
        Reader(name),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        weight_type=QuantType.QInt8,
    )
    return out


def compile_all(
    candidates: dict[str, Any], threads: int, options: dict[str, str]
) -> dict[str, Any]:
    """Compile each candidate for batch 1, the quantized ones with ``options``."""
    import openvino

    core = openvino.Core()
    # Without the hint OpenVINO runs "FP32" in bfloat16 where the CPU has it.
    common = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = {}
    for name, source in candidates.items():
        model = core.read_model(source) if isinstance(source, Path) else source.clone()
        model.reshape({model.inputs[0]: [1, SIZE, SIZE, 3]})
        compiled[name] = core.compile_model(
            model, "CPU", common | ({} if name == "fp32" else options)
        )
    return compiled


def measure(compiled: dict[str, Any], rounds: int) -> dict[str, float]:
    """Return the median latency in milliseconds of each engine, measured in turns."""
    requests = {name: engine.create_infer_request() for name, engine in compiled.items()}
    times: dict[str, list[float]] = {name: [] for name in compiled}
    x = images(1)
    draw = random.Random(0)
    for index in range(rounds + 5):
        # In another order each time: what an engine finds in the caches depends on the one before
        # it.
        for name in draw.sample([*requests], len(requests)):
            started = time.perf_counter()
            requests[name].infer({0: x})
            if index >= 5:
                times[name].append((time.perf_counter() - started) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def layer_types(engine: Any) -> dict[str, int]:
    """Return the compiled graph's node counts by type and precision."""
    counts: dict[str, int] = {}
    for node in engine.get_runtime_model().get_ordered_ops():
        info = node.get_rt_info()
        key = f"{info['layerType'].value if 'layerType' in info else node.get_type_name()}"
        precision = info["runtimePrecision"].value if "runtimePrecision" in info else "?"
        counts[f"{key}:{precision}"] = counts.get(f"{key}:{precision}", 0) + 1
    return dict(sorted(counts.items()))


def main() -> None:
    """Run the comparison for the networks named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "networks", nargs="*", default=["ResNet50", "MobileNetV2", "EfficientNetB0"]
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--target", default="openvino")
    parser.add_argument(
        "--layers",
        action="store_true",
        help="print the types and precisions of the compiled layers",
    )
    parser.add_argument(
        "--signed", action="store_true", help="also measure signed integers, as TensorRT has them"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument(
        "--work", type=Path, help="keep the files here (default: a temporary folder)"
    )
    parser.add_argument("--without", nargs="*", default=[], help="leave out nncf or onnxruntime")
    arguments = parser.parse_args()

    networks = {}
    with tempfile.TemporaryDirectory() as scratch:
        for network in arguments.networks:
            folder = (arguments.work or Path(scratch)) / network
            folder.mkdir(parents=True, exist_ok=True)
            networks[network] = {"median_ms": compare(network, folder, arguments)}
    if arguments.json:
        record.write(
            arguments.json,
            {"rounds": arguments.rounds, "target": arguments.target, "networks": networks},
        )


def compare(
    network: str, folder: Path, arguments: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Quantize one network with each tool; return the median latencies.

    All are measured in turns, and the medians printed.
    """
    import keras

    import qat_lib

    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, network)(weights=None, input_shape=(SIZE, SIZE, 3))
    print(network, flush=True)
    fp32 = qat_lib.export_onnx(model, folder / "fp32.onnx").path
    target = arguments.target
    ours = export_ours(model, folder / "qatline.onnx", target, unsigned=target == "openvino")
    candidates: dict[str, Any] = {"fp32": fp32, "qatline": ours}
    if arguments.signed:
        candidates["qatline signed"] = export_ours(
            model, folder / "signed.onnx", target, unsigned=False
        )
    if "nncf" not in arguments.without:
        candidates["nncf"] = quantize_nncf(fp32)
    if "onnxruntime" not in arguments.without:
        candidates["onnxruntime"] = quantize_onnxruntime(fp32, folder)
    found = {}
    for way, options in WAYS.items():
        compiled = compile_all(candidates, arguments.threads, options)
        found[way] = medians = measure(compiled, arguments.rounds)
        speedups = {name: round(medians["fp32"] / value, 2) for name, value in medians.items()}
        print(f"  {way}, median ms:", json.dumps({k: round(v, 2) for k, v in medians.items()}))
        print(f"  {way}, times FP32:", json.dumps(speedups), flush=True)
        if arguments.layers:
            for name, engine in compiled.items():
                print(f"  {name}:", json.dumps(layer_types(engine)))
    return found


if __name__ == "__main__":
    main()
