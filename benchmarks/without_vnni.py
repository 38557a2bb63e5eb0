"""INT8 on CPUs without VNNI: ways to keep sums of two products within 16 bits.

Each way quantizes the same network without training. Its engine in OpenVINO and its ONNX graph in
exact arithmetic (ONNX Runtime without optimizations) are compared with FP32. Latency is that of
FP32 over INT8 at batch 1, in turns, medians.

    ONEDNN_MAX_CPU_ISA=AVX2 uv run --group bench python benchmarks/without_vnni.py

The variable makes a CPU with VNNI compute as one without; a CPU without needs none. Weights and
images are those of ``engine_faults.py`` and ``ptq_agreement.py``; what is not there is skipped.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import engine_faults
import numpy as np
import ptq_agreement
import record
from applications_images import SHARED

TURNS = 40


def networks(images: int) -> dict[str, Callable[[], tuple[Any, np.ndarray, np.ndarray]]]:
    """Return for each network a function that gives model, calibration and test images."""

    def photographs(name: str) -> tuple[Any, np.ndarray, np.ndarray]:
        network = ptq_agreement.NETWORKS[name]
        model = network.build()
        usual = {"mean": network.mean, "spread": network.spread}
        calibration = ptq_agreement.mixed("x_train", 200, 0, **usual)
        return model, calibration, ptq_agreement.mixed("x_test", images, 1, **usual)

    return {
        "digits": lambda: engine_faults.digits()[:3],
        "resnet20": lambda: engine_faults.resnet20()[:3],
        "mobilenetv2": lambda: photographs("mobilenetv2"),
        "efficientnet_lite0": lambda: photographs("efficientnet_lite0"),
    }


def plans(model: Any) -> dict[str, dict[str, Any]]:
    """Return options of ``plan_quantization`` by way."""
    import qat_lib

    first = next(layer.name for layer in model.layers if "conv" in type(layer).__name__.lower())
    narrow = qat_lib.QuantizationSpec().add(".*", is_regex=True, weight_num_bits=7)
    return {
        "8 bits": {"cpu": "vnni"},
        "room for pairs": {"cpu": "avx2"},
        "7 bits": {"cpu": "vnni", "quantization_spec": narrow},
        "7 bits in the first layer": {
            "cpu": "vnni",
            "quantization_spec": qat_lib.QuantizationSpec().add(first, weight_num_bits=7),
        },
    }


def ours(model: Any, calibration: np.ndarray, path: Path, **options: Any) -> Path:
    """Quantize as ``qatline quantize`` does, and export."""
    import qat_lib

    recipe = qat_lib.PtqRecipe()
    prepared = recipe.prepare(model, calibration).model
    quantized = qat_lib.apply_plan(
        prepared, qat_lib.plan_quantization(prepared, custom_qdq_cases="auto", **options)
    )
    recipe.finish(quantized, calibration)
    return Path(qat_lib.export_onnx(quantized, path, target="openvino").path)


def exact(path: Path, images: np.ndarray) -> np.ndarray:
    """Return the answers of an ONNX file in exact arithmetic."""
    from qat_lib.engines.onnxruntime import reference_session

    session = reference_session(path)
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: x[None]})[0] for x in images])


def speed(fp32: Any, other: Any, image: np.ndarray) -> float:
    """Return how many times as fast ``other`` answers one image, in turns."""
    import openvino

    core, engines = openvino.Core(), []
    options = {"INFERENCE_PRECISION_HINT": "f32", "SNIPPETS_MODE": "DISABLE"}
    for source in (fp32, other):
        model = core.read_model(source) if isinstance(source, Path) else source
        engines.append(core.compile_model(model, "CPU", options))
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS):
        for engine, found in zip(engines, seconds, strict=True):
            started = time.perf_counter()
            engine(image[None])
            found.append(time.perf_counter() - started)
    return statistics.median(seconds[0]) / statistics.median(seconds[1])


def measure(name: str, images: int, folder: Path, without: list[str]) -> dict[str, Any]:
    """Return a row for each way of one network."""
    import qat_lib

    model, calibration, test = networks(images)[name]()
    test = test[:images]
    fp32 = Path(qat_lib.export_onnx(model, folder / "fp32.onnx", target="openvino").path)
    reference = ptq_agreement.answers(fp32, test)
    ways: dict[str, Callable[[], Any]] = {}
    for sign, unsigned in (("unsigned", True), ("signed", False)):
        for way, options in plans(model).items():
            ways[f"{way}, {sign}"] = lambda o=options, u=unsigned: ours(
                model, calibration, folder / "q.onnx", unsigned=u, **o
            )
    if "nncf" not in without:
        ways["NNCF"] = lambda: ptq_agreement.nncf_model(fp32, calibration, accurate=False)
    if "onnxruntime" not in without:
        ways["ONNX Runtime's quantizer"] = lambda: ptq_agreement.onnxruntime_model(
            fp32, calibration, folder / "ort.onnx"
        )
    rows = {}
    for way, quantize in ways.items():
        source = quantize()
        row = ptq_agreement.distance(ptq_agreement.answers(source, test), reference)
        if isinstance(source, Path):
            row["exact_kl"] = ptq_agreement.distance(exact(source, test), reference)["kl"]
        rows[way] = {**row, "speed": speed(fp32, source, test[0])}
        print(f"{name:20s} {way:38s} " + "  ".join(f"{k} {v:.4f}" for k, v in rows[way].items()))
        sys.stdout.flush()
    return {"images": len(test), "calibration": len(calibration), "rows": rows}


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(networks(0)))
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--without", nargs="*", default=[], help="leave out nncf or onnxruntime")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    from qat_lib.engines import cpu_kind

    found = {}
    for name in arguments.networks:
        if name != "digits" and not SHARED.is_dir():
            print(f"{name} is skipped: there is no {SHARED}.", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            found[name] = measure(name, arguments.images, Path(folder), arguments.without)
    if arguments.json:
        record.write(arguments.json, {"cpu": cpu_kind(), "networks": found})


if __name__ == "__main__":
    main()
