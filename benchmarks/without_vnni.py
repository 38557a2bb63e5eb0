"""INT8 on CPUs with and without VNNI: ways to keep sums of two products within 16 bits.

Each way quantizes the same network once, without training. The files are compared with FP32 in
OpenVINO on both kinds of CPU, in ONNX Runtime, and in exact arithmetic (ONNX Runtime without
optimizations). Speed is the processor time of FP32 over that of INT8: one image, one
thread, in turns, medians.

    uv run --group bench python benchmarks/without_vnni.py --json benchmarks/results/without_vnni.json

OpenVINO runs in a process for each kind of CPU: ``ONEDNN_MAX_CPU_ISA=AVX2`` makes a CPU with VNNI
compute as one without. ONNX Runtime has no such switch and runs on the CPU as it is. A CPU without
VNNI measures that kind alone. Weights and images are those of ``engine_faults.py`` and
``ptq_agreement.py``; what is not there is skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
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


Part = tuple[Any, np.ndarray, np.ndarray, np.ndarray | None]


def networks(images: int) -> dict[str, Callable[[], Part]]:
    """Return a function for each network: model, calibration images, test images and labels."""

    def photographs(name: str) -> Part:
        network = ptq_agreement.NETWORKS[name]
        model = network.build()
        usual = {"mean": network.mean, "spread": network.spread}
        calibration = ptq_agreement.mixed("x_train", 200, 0, **usual)
        return model, calibration, ptq_agreement.mixed("x_test", images, 1, **usual), None

    return {
        "digits": engine_faults.digits,
        "resnet20": engine_faults.resnet20,
        "mobilenetv2": lambda: photographs("mobilenetv2"),
        "efficientnet_lite0": lambda: photographs("efficientnet_lite0"),
    }


def plans(model: Any) -> dict[str, dict[str, Any]]:
    """Return options of ``plan_quantization`` by way."""
    import qat_lib

    first = next(layer.name for layer in model.layers if "conv" in type(layer).__name__.lower())
    narrow = qat_lib.QuantizationSpec()
    # Naming every layer would quantize more tensors than the default does.
    for entry in qat_lib.plan_quantization(model, custom_qdq_cases="auto").by_kind("weight"):
        narrow.add(entry.tensor.rpartition("/")[0], weight_num_bits=7)
    narrow_first = qat_lib.QuantizationSpec().add(first, weight_num_bits=7)
    return {
        "room for pairs, unsigned": {"cpu": "avx2", "unsigned": True},
        "room for pairs, signed": {"cpu": "avx2", "unsigned": False},
        "8 bits, unsigned": {"cpu": "vnni", "unsigned": True},
        "8 bits, signed": {"cpu": "vnni", "unsigned": False},
        "7 bits, unsigned": {"cpu": "vnni", "unsigned": True, "quantization_spec": narrow},
        "7 bits in the first layer, unsigned": {
            "cpu": "vnni",
            "unsigned": True,
            "quantization_spec": narrow_first,
        },
        "7 bits in the first layer, signed": {
            "cpu": "vnni",
            "unsigned": False,
            "quantization_spec": narrow_first,
        },
    }


def quantized_files(
    model: Any, calibration: np.ndarray, folder: Path, without: list[str]
) -> dict[str, Path]:
    """Return a file that OpenVINO reads for FP32 and for each way."""
    import qat_lib

    files = {"FP32": folder / "fp32.onnx"}
    qat_lib.export_onnx(model, files["FP32"], target="openvino")
    prepared = {
        cpu: qat_lib.PtqRecipe(backend="openvino", cpu=cpu).prepare(model, calibration).model
        for cpu in ("avx2", "vnni")
    }
    for index, (way, options) in enumerate(plans(model).items()):
        if way in without:
            continue
        start = prepared[options["cpu"]]
        plan = qat_lib.plan_quantization(start, custom_qdq_cases="auto", **options)
        quantized = qat_lib.apply_plan(start, plan)
        qat_lib.PtqRecipe().finish(quantized, calibration)
        path = folder / f"{index}.onnx"
        qat_lib.export_onnx(quantized, path, target="openvino")
        files[way] = path
    if "NNCF" not in without:
        import openvino

        found = ptq_agreement.nncf_model(files["FP32"], calibration, accurate=False)
        files["NNCF"] = folder / "nncf.xml"
        openvino.save_model(found, files["NNCF"], compress_to_fp16=False)
    if "ONNX Runtime's quantizer" not in without:
        files["ONNX Runtime's quantizer"] = ptq_agreement.onnxruntime_model(
            files["FP32"], calibration, folder / "ort.onnx"
        )
    return files


def session_answers(session: Any, images: np.ndarray) -> np.ndarray:
    """Return the answers of an ONNX Runtime session."""
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: x[None]})[0] for x in images])


def ratio(run: Callable[[str], Any], other: str) -> float:
    """Return how many times as fast as FP32 ``other`` answers, in turns."""
    seconds: dict[str, list[float]] = {"FP32": [], other: []}
    for _ in range(TURNS):
        for name, found in seconds.items():
            started = time.process_time()
            run(name)
            found.append(time.process_time() - started)
    return statistics.median(seconds["FP32"]) / statistics.median(seconds[other])


def in_onnxruntime(
    files: dict[str, Path], images: np.ndarray, labels: np.ndarray | None
) -> dict[str, Any]:
    """Return figures of each ONNX file, in exact arithmetic and in ONNX Runtime."""
    import onnxruntime

    from qat_lib.engines.onnxruntime import reference_session

    found: dict[str, Any] = {}
    onnx_files = {way: path for way, path in files.items() if path.suffix == ".onnx"}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = {
        way: onnxruntime.InferenceSession(str(path), options) for way, path in onnx_files.items()
    }
    name = sessions["FP32"].get_inputs()[0].name
    reference = session_answers(sessions["FP32"], images)
    for way, path in onnx_files.items():
        exact = reference_session(path)
        found[way] = {
            "exact": figures(session_answers(exact, images), reference, labels),
            "onnxruntime": figures(session_answers(sessions[way], images), reference, labels),
        }
        found[way]["onnxruntime"]["speed"] = ratio(
            lambda key: sessions[key].run(None, {name: images[:1]}), way
        )
    return found


def in_openvino(
    files: dict[str, Path], images: np.ndarray, labels: np.ndarray | None
) -> dict[str, Any]:
    """Return figures of each file in OpenVINO, on this process's kind of CPU."""
    import openvino

    options = {"INFERENCE_PRECISION_HINT": "f32", "SNIPPETS_MODE": "DISABLE"}
    options |= {"INFERENCE_NUM_THREADS": 1}
    core = openvino.Core()
    engines = {way: core.compile_model(path, "CPU", options) for way, path in files.items()}
    reference = np.concatenate([engines["FP32"](x[None])[0] for x in images])
    found = {}
    for way, engine in engines.items():
        answers = np.concatenate([engine(x[None])[0] for x in images])
        found[way] = figures(answers, reference, labels)
        found[way]["speed"] = ratio(lambda key: engines[key](images[:1]), way)
    return found


def figures(
    answers: np.ndarray, reference: np.ndarray, labels: np.ndarray | None
) -> dict[str, float]:
    """Return agreement and divergence from FP32, and the accuracy where labels are known."""
    found = ptq_agreement.distance(answers, reference)
    if labels is not None:
        found["accuracy"] = float(100 * np.mean(answers.argmax(axis=1) == labels))
    return found


def measure(name: str, images: int, folder: Path, without: list[str]) -> dict[str, Any]:
    """Return the figures of each way of one network."""
    from qat_lib.engines import cpu_kind

    model, calibration, test, labels = networks(images)[name]()
    test, labels = test[:images], None if labels is None else labels[:images]
    files = quantized_files(model, calibration, folder, without)
    inputs = {"images": test} if labels is None else {"images": test, "labels": labels}
    np.savez(folder / "test.npz", **inputs)
    (folder / "files.json").write_text(json.dumps({way: str(p) for way, p in files.items()}))
    rows = in_onnxruntime(files, test, labels)
    limits = {"avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"}}
    if cpu_kind() == "vnni":
        limits["vnni"] = {}
    for kind, limit in limits.items():
        command = [sys.executable, __file__, "--answer", str(folder)]
        subprocess.run(command, check=True, env={**os.environ, **limit})
        for way, found in json.loads((folder / "answers.json").read_text()).items():
            rows.setdefault(way, {})[kind] = found
    for way, row in rows.items():
        for where, found in row.items():
            numbers = "  ".join(f"{key} {value:.4f}" for key, value in found.items())
            print(f"{name:20s} {way:36s} {where:12s} {numbers}", flush=True)
    return {"images": len(test), "calibration": len(calibration), "rows": rows}


def answer(folder: Path) -> None:
    """Write the figures in OpenVINO of the files in a folder."""
    files = json.loads((folder / "files.json").read_text())
    with np.load(folder / "test.npz") as test:
        images, labels = test["images"], test.get("labels")
    found = in_openvino({way: Path(path) for way, path in files.items()}, images, labels)
    (folder / "answers.json").write_text(json.dumps(found))


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(networks(0)))
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--without", nargs="*", default=[], help="ways to leave out")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        answer(arguments.answer)
        return
    found = {}
    if arguments.json and arguments.json.is_file():  # networks of earlier calls
        found = json.loads(arguments.json.read_text())["networks"]
    for name in arguments.networks:
        if name != "digits" and not SHARED.is_dir():
            print(f"{name} is skipped: there is no {SHARED}.", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            measured = measure(name, arguments.images, Path(folder), arguments.without)
        earlier = found.get(name, {"rows": {}})
        # Ways that were left out keep their figures, if they come from the same images.
        if earlier == {**measured, "rows": earlier["rows"]}:
            measured["rows"] = {**earlier["rows"], **measured["rows"]}
        found[name] = measured
        if arguments.json:
            record.write(arguments.json, {"networks": found})


if __name__ == "__main__":
    main()
