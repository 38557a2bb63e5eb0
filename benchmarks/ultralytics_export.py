"""Ultralytics' INT8 export next to one call of ``qat_lib.optimize``: YOLOv8n on blood cells.

    pip install ultralytics nncf "torchvision" ".[keras,engine,torch]"
    python benchmarks/ultralytics_export.py --weights yolov8n_bccd.pt --json ultralytics_export.json

Without ``--weights``, YOLOv8n is trained first, from random weights, for ``--epochs``. Both tools
calibrate with the 87 images of the part ``val`` of ``bccd`` in ``QATLINE_SHARED_DATA``. Ultralytics'
validator measures all models on the 72 images of the part ``test``, with 320 pixels and one image
at a time. Seconds and CPU seconds of both tools include the conversion and the quantization; those
of ``optimize`` also the float engine, the checks of both engines, the measurement of latencies and
the report. Latencies are medians of one image in OpenVINO, with float operations in FP32, all models
in turns. Ultralytics' result differs from run to run, by up to 0.002 of the average precision.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import record
from applications_images import SHARED

SIZE = 320
SETTINGS = {"imgsz": SIZE, "device": "cpu"}


def write_data(folder: Path) -> dict[str, Path]:
    """Write the images with Ultralytics' labels; return a data file for training and for the test."""
    for part in ("train", "val", "test"):
        content = json.loads((SHARED / "bccd" / f"{part}.json").read_text())
        for name in ("images", "labels"):
            (folder / name / part).mkdir(parents=True)
        classes = {entry["id"]: index for index, entry in enumerate(content["categories"])}
        for image in content["images"]:
            file = Path(image["file_name"]).name
            shutil.copy(SHARED / "bccd" / "images" / file, folder / "images" / part)
            rows = []
            for found in content["annotations"]:
                if found["image_id"] == image["id"]:
                    (x, y, width, height), scale = found["bbox"], (image["width"], image["height"])
                    box = np.array([x + width / 2, y + height / 2, width, height]) / (
                        *scale,
                        *scale,
                    )
                    label = classes[found["category_id"]]
                    rows.append(" ".join([str(label), *(f"{v:.6f}" for v in box)]))
            (folder / "labels" / part / file).with_suffix(".txt").write_text("\n".join(rows))
    names = [entry["name"] for entry in content["categories"]]
    files = {}
    for part in ("val", "test"):
        files[part] = folder / f"{part}.yaml"
        text = f"path: {folder}\ntrain: images/train\nval: images/{part}\nnames: {names}\n"
        files[part].write_text(text)
    return files


def images(folder: Path) -> np.ndarray:
    """Return images as the validator prepares them: letterboxed, RGB from 0 to 1, channels first."""
    import cv2
    from ultralytics.data.augment import LetterBox

    box = LetterBox((SIZE, SIZE), auto=False)
    found = [box(image=cv2.imread(str(path))) for path in sorted(folder.iterdir())]
    return np.stack([x[..., ::-1].transpose(2, 0, 1) for x in found]).astype(np.float32) / 255


def seconds_of(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return the result of a function, its seconds and its CPU seconds."""

    def cpu() -> float:
        found = [
            resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ]
        return sum(each.ru_utime + each.ru_stime for each in found)

    began, cpu_began = time.perf_counter(), cpu()
    result = work()
    return result, {"seconds": time.perf_counter() - began, "cpu_seconds": cpu() - cpu_began}


def for_validator(path: str, metadata: Any, folder: Path) -> Path:
    """Write an ONNX file with the metadata and the one output that Ultralytics' validator reads."""
    import onnx

    model: Any = onnx.load(path)
    known = {entry.key for entry in model.metadata_props}
    model.metadata_props.extend(entry for entry in metadata if entry.key not in known)
    predictions = model.graph.output[0]
    del model.graph.output[:]
    model.graph.output.append(predictions)
    onnx.save(model, str(folder / "optimized.onnx"))
    return folder / "optimized.onnx"


def latencies(plain: Path, exported: Path, optimized: Path) -> list[float]:
    """Return the median latency of one image in ms: FP32, Ultralytics' export, qatline's engine."""
    import openvino

    import qat_lib

    core, x = openvino.Core(), np.zeros((1, 3, SIZE, SIZE), np.float32)
    options = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    runs: list[Callable[[], Any]] = []
    for file in (plain, next(exported.glob("*.xml"))):
        model = core.read_model(file)
        model.reshape({model.inputs[0]: [1, 3, SIZE, SIZE]})
        request = core.compile_model(model, "CPU", options).create_infer_request()
        runs.append(lambda request=request: request.infer([x]))
    spec = qat_lib.BuildSpec(backend="openvino", max_batch_size=1)
    engine = qat_lib.load_engine(qat_lib.build_engine(optimized, spec).path)
    runs.append(lambda: engine.infer({engine.inputs[0].name: x}))
    found: list[list[float]] = [[], [], []]
    for turn in range(320):
        for times, run in zip(found, runs, strict=True):
            began = time.perf_counter()
            run()
            if turn >= 20:
                times.append(1000 * (time.perf_counter() - began))
    return [float(np.median(times)) for times in found]


def measure(weights: Path, files: dict[str, Path], folder: Path) -> dict[str, Any]:
    """Return a row for each model."""
    import onnx
    from ultralytics import YOLO

    import qat_lib

    def value(file: Any) -> dict[str, float]:
        model = YOLO(str(file), task="detect")
        found = model.val(
            data=str(files["test"]), batch=1, rect=False, plots=False, workers=0, **SETTINGS
        )
        return {"map": float(found.box.map), "map50": float(found.box.map50)}

    def exported(**options: Any) -> Any:
        shutil.copy(weights, folder / "model.pt")
        return YOLO(str(folder / "model.pt")).export(imgsz=SIZE, **options)

    rows: dict[str, Any] = {"FP32": value(weights)}
    plain = exported(format="onnx", opset=17)
    metadata = onnx.load(plain).metadata_props
    made, cost = seconds_of(lambda: exported(format="openvino", quantize=8, data=str(files["val"])))
    rows["Ultralytics' export"] = {**value(made), **cost}
    calibration, test = (images(folder / "data" / "images" / part) for part in ("val", "test"))
    model = YOLO(str(weights)).model.eval()
    found, cost = seconds_of(
        lambda: qat_lib.optimize(
            model, calibration, folder / "optimized", test_data=test, max_batch_size=1
        )
    )
    ours = for_validator(found.onnx, metadata, folder)
    quality = value(ours)
    int8 = {"int8_layers": found.int8_layers, "weighted_layers": found.weighted_layers}
    rows["qat_lib.optimize"] = {**quality, **cost, **int8}
    measured = latencies(Path(plain), Path(made), ours)
    for row, latency in zip(rows.values(), measured, strict=True):
        row["latency_ms"] = latency
    return rows


def main() -> None:
    """Measure both tools."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", type=Path, help="trained YOLOv8n (.pt)")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    os.environ.setdefault("YOLO_OFFLINE", "true")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files = write_data(folder / "data")
        weights = arguments.weights
        if weights is None:
            from ultralytics import YOLO

            options = {"mosaic": 0.5, "close_mosaic": 15, "optimizer": "SGD", "amp": False}
            YOLO("yolov8n.yaml").train(
                data=str(files["val"]), epochs=arguments.epochs, workers=0, plots=False,
                project=str(folder), name="training", **options, **SETTINGS,
            )  # fmt: skip
            weights = folder / "training" / "weights" / "last.pt"
        rows = measure(weights.resolve(), files, folder)
    for name, row in rows.items():
        print(f"{name:20} {json.dumps(row)}")
    if arguments.json:
        record.write(arguments.json, {"size": SIZE, "rows": rows})


if __name__ == "__main__":
    main()
