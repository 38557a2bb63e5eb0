"""TensorRT engines of trained networks: FP32, FP16, INT8 by qatline and by NVIDIA's ModelOpt.

Two commands, for two machines. The first quantizes and needs Keras, the second needs an NVIDIA GPU
with TensorRT and neither Keras nor the weights.

    uv run python benchmarks/tensorrt_engines.py prepare FOLDER [--modelopt PYTHON]
    python benchmarks/tensorrt_engines.py measure FOLDER --json benchmarks/results/tensorrt_engines.json

``prepare`` writes one folder per network of ``ptq_agreement.py``: ``fp32.onnx``, ``qatline.onnx``,
``modelopt.onnx`` where a Python with nvidia-modelopt is given, and photographs. Weights are
stored as FP32 + Q + DQ, which every TensorRT reads. ``measure`` builds an engine of each file, and of
``fp32.onnx`` in FP16. It writes latency with and without copies, the layers in INT8 and how many were
predicted, the check against ONNX Runtime, and the distance from FP32 on the photographs: the
reference of all is ``fp32.onnx`` in ONNX Runtime.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import record

# For the validation script, which measures engines, too.
sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))

NETWORKS = ("resnet20", "mobilenetv2", "efficientnet_lite0")
MODELOPT = """
import sys
import numpy as np
from modelopt.onnx.quantization import quantize
fp32, images, output = sys.argv[1:]
quantize(fp32, calibration_data=np.load(images), output_path=output, high_precision_dtype="fp32",
         calibration_eps=["cpu"])
"""


def prepare(options: argparse.Namespace) -> None:
    """Quantize the networks and write their ONNX files and photographs."""
    import ptq_agreement

    import qat_lib

    for name in options.networks:
        network = ptq_agreement.NETWORKS[name]
        normalization = {"mean": network.mean, "spread": network.spread}
        calibration = network.images("x_train", 200, 0, **normalization)
        # Few: the folder is carried to the other machine.
        count = 1000 if calibration.shape[1] < 100 else 200
        images = network.images("x_test", count, 1, **normalization)
        folder = options.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        model = network.build()
        qat_lib.export_onnx(model, folder / "fp32.onnx")
        quantized = qat_lib.PtqRecipe(backend="tensorrt").quantize(model, calibration)
        qat_lib.export_onnx(quantized, folder / "qatline.onnx", weights="qdq")
        levels = np.rint((images * network.spread + network.mean) * 255).astype(np.uint8)
        np.savez_compressed(
            folder / "images.npz", levels=levels, mean=network.mean, spread=network.spread
        )
        if options.modelopt:
            with tempfile.TemporaryDirectory() as scratch:
                np.save(f"{scratch}/calibration.npy", calibration)
                files = [
                    folder / "fp32.onnx",
                    f"{scratch}/calibration.npy",
                    folder / "modelopt.onnx",
                ]
                subprocess.run([options.modelopt, "-c", MODELOPT, *map(str, files)], check=True)
        print(f"{name}: {exact(folder)}", flush=True)


def measure(options: argparse.Namespace) -> None:
    """Build and measure the engines of every folder."""
    from gpu_validation import summary_line

    from qat_lib.engines.tensorrt.backend import TensorRTBackend

    backend = TensorRTBackend()
    figures: dict[str, Any] = {
        "tensorrt": backend.version(),
        "device": dict(backend.device()),
        "exact": {},
        "networks": {},
    }
    for folder in sorted(path.parent for path in options.folder.glob("*/fp32.onnx")):
        engines = [(onnx.stem, onnx, "fp32") for onnx in sorted(folder.glob("*.onnx"))]
        engines.append(("fp16", folder / "fp32.onnx", "fp16"))
        rows = figures["networks"][folder.name] = {}
        reference, images = expected(folder)
        figures["exact"][folder.name] = exact(folder)
        for name, onnx, precision in engines:
            rows[name] = measure_engine(onnx, precision, images, reference, options)
            print(
                summary_line({"network": folder.name, "precision": name, **rows[name]}), flush=True
            )
            # After each engine: all of them take minutes.
            record.write(options.json, figures)


def exact(folder: Path) -> dict[str, dict[str, float]]:
    """Return the distance of each INT8 file from FP32 in exact arithmetic."""
    from ptq_agreement import distance

    reference, images = expected(folder)
    files = sorted(set(folder.glob("*.onnx")) - {folder / "fp32.onnx"})
    return {path.stem: distance(exact_logits(path, images), reference) for path in files}


def expected(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return FP32's logits in ONNX Runtime, and the inputs."""
    with np.load(folder / "images.npz", allow_pickle=False) as data:
        images = (data["levels"].astype(np.float32) / 255 - data["mean"]) / data["spread"]
    images = images.astype(np.float32)
    return exact_logits(folder / "fp32.onnx", images), images


def exact_logits(onnx: Path, images: np.ndarray) -> np.ndarray:
    """Return the logits of an ONNX file in ONNX Runtime without optimizations."""
    from qat_lib.engines.onnxruntime import reference_session

    session = reference_session(onnx)
    name = session.get_inputs()[0].name
    parts = [session.run(None, {name: images[i : i + 32]})[0] for i in range(0, len(images), 32)]
    return np.concatenate(parts)


def measure_engine(
    onnx: Path,
    precision: Any,
    images: np.ndarray,
    reference: np.ndarray,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Return one engine's figures, or the reason why there are none."""
    from gpu_validation import measure as measure_one
    from ptq_agreement import distance

    from qat_lib.engines import load_engine
    from qat_lib.errors import QatlineError

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "model.engine")
        try:
            row = measure_one(onnx, path, precision, options.seconds, images[:64])
            with load_engine(path) as engine:
                logits = next(iter(engine.infer_many(images).values()))
        except QatlineError as error:
            return {"error": str(error)}
    del row["layers"]
    return {**distance(logits, reference), **row}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    preparing = commands.add_parser("prepare", help="quantize; needs Keras")
    preparing.add_argument("folder", type=Path)
    preparing.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    preparing.add_argument("--modelopt", help="a Python with nvidia-modelopt[onnx]")
    preparing.set_defaults(run=prepare)
    measuring = commands.add_parser("measure", help="build and measure; needs a GPU")
    measuring.add_argument("folder", type=Path)
    measuring.add_argument("--seconds", type=float, default=2.0, help="time of each benchmark")
    measuring.add_argument("--json", type=Path, required=True)
    measuring.set_defaults(run=measure)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    sys.exit(main())
