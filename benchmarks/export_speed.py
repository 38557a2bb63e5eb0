"""Time, memory and size of one network's export against tf2onnx.

Each runs in a process of its own.

    uv run python benchmarks/export_speed.py --network ResNet50 [--repeat 3] [--json FILE]

"tf2onnx alone" is what one writes without this library: ``tf2onnx.convert.from_function`` of a
``tf.function`` around the float Keras model, tf2onnx's own optimizers included. The other rows are
``qat_lib.export_onnx`` of the float model and of its quantized form: everything, verification
included, and of that trace and conversion. Memory is the peak of the process minus what it held
when the model was built (its weights, TensorFlow), over the size of the FP32 weights.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import record

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


class Peak:
    """Samples the resident memory of this process while the block runs."""

    def __enter__(self) -> Peak:
        self.before = self.highest = self._resident()
        self._running = True
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._running = False
        self._thread.join()

    def _sample(self) -> None:
        while self._running:
            self.highest = max(self.highest, self._resident())
            time.sleep(0.005)

    @staticmethod
    def _resident() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def convert_alone(model: Any, path: Path) -> dict[str, float]:
    """Convert with tf2onnx's public function and write the file."""
    import tensorflow as tf
    import tf2onnx

    specs = [tf.TensorSpec(x.shape, x.dtype, name=x.name) for x in model.inputs]

    @tf.function
    def forward(x: Any) -> Any:
        return model(x, training=False)

    started = time.perf_counter()
    tf2onnx.convert.from_function(forward, input_signature=specs, opset=17, output_path=str(path))
    return {"conversion_seconds": time.perf_counter() - started}


def child(what: str, network: str, size: int, folder: Path) -> None:
    """Measure one row and print it as JSON."""
    import keras
    import numpy as np

    import qat_lib

    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, network)(weights=None, input_shape=(size, size, 3))
    weights = sum(int(np.prod(v.shape)) * 4 for v in model.variables)
    path = folder / f"{what}.onnx"
    if what == "int8":
        model = qat_lib.quantize_model(model, custom_qdq_cases=[qat_lib.TensorRTQDQCase()])
        images = np.random.default_rng(0).uniform(-1, 1, (2, size, size, 3)).astype(np.float32)
        qat_lib.calibrate(model, images, method="max", batch_size=1)
    # Imports are no part of a conversion.
    for module in ("tf2onnx", "qat_lib.keras.export.export"):
        importlib.import_module(module)

    with Peak() as peak:
        started = time.perf_counter()
        if what == "tf2onnx":
            row = convert_alone(model, path)
        else:
            report = qat_lib.export_onnx(model, path)
            row = {"conversion_seconds": report.conversion_seconds}
        row["seconds"] = time.perf_counter() - started
    row |= {
        "bytes": path.stat().st_size,
        "memory_factor": (peak.highest - peak.before) / weights,
        "weights": weights,
    }
    print("ROW " + json.dumps(row))


def main() -> None:
    """Measure the three rows and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="ResNet50")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--child", default="")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.network, arguments.size, arguments.folder)
        return
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.repeat):
            for what in ("tf2onnx", "fp32", "int8"):
                command = [sys.executable, __file__, "--child", what, "--folder", folder]
                command += ["--network", arguments.network, "--size", str(arguments.size)]
                result = subprocess.run(command, capture_output=True, text=True, check=True)
                row = json.loads(
                    next(x for x in result.stdout.splitlines() if x.startswith("ROW "))[4:]
                )
                if what not in rows or row["seconds"] < rows[what]["seconds"]:
                    rows[what] = row
    print(f"{arguments.network} at {arguments.size} px, best of {arguments.repeat}")
    for what, row in rows.items():
        print(
            f"  {what:8s} conversion {row['conversion_seconds']:6.2f} s, all {row['seconds']:6.2f} s, "
            f"{row['bytes'] / 1e6:7.2f} MB, memory {row['memory_factor']:.2f} x the FP32 weights"
        )
    share = rows["int8"]["bytes"] / rows["fp32"]["bytes"]
    print(f"  INT8 file over FP32 file: {share:.4f}")
    if arguments.json:
        figures = {
            "network": arguments.network,
            "pixels": arguments.size,
            "repeats": arguments.repeat,
        }
        record.write(arguments.json, {**figures, "int8_share": share, "rows": rows})


if __name__ == "__main__":
    main()
