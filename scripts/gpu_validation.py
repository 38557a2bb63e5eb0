#!/usr/bin/env python3
"""Validate the TensorRT path on an NVIDIA GPU; write the results.

The results go to a JSON file.

    python scripts/gpu_validation.py [-o gpu_validation.json] [--onnx DIR] [--seconds 3]

Needs Linux, an NVIDIA GPU with a driver for CUDA 12, and a package index; no CUDA toolkit and no
TensorFlow. Where the interpreter that runs it has a supported TensorRT, that one is used. Otherwise
the script makes a virtual environment with CPython 3.10 (a python3.10 on PATH, pyenv's, or uv's)
and installs TensorRT 8.6 there: a wheel of 819 MB, which is the one version whose whole library the
package index serves, and cuBLAS and cuDNN, which its plugin library names.

FP32, FP16 and INT8 engines are built of ResNet-50 (random weights) and of the default network: the
``fp32.onnx`` and ``qat.onnx`` in ``--onnx`` (a run's export_onnx directory), or where there are
none a network of the same kind with random weights. For each engine the file says: latency at batch
1 and 32, layers by precision, how far its outputs are from ONNX Runtime's and how many labels
agree, and for INT8 how many of the predicted fusions came true.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
REQUIREMENTS = [str(REPOSITORY), "onnx>=1.18,<2", "onnxruntime>=1.22", "cuda-bindings==12.9.*"]
TENSORRT_86 = ["tensorrt==8.6.0", "nvidia-cublas-cu12", "nvidia-cudnn-cu12<9"]
BATCHES = (1, 32)


# ---------------------------------------------------------------------- an environment that has
# TensorRT
def find_tensorrt_here() -> str | None:
    """Return why this interpreter can't run engines; None where it can."""
    sys.path.insert(0, str(REPOSITORY))
    try:
        from qat_lib.engines.tensorrt.backend import TensorRTBackend
        from qat_lib.errors import BackendUnavailableError
    except ImportError as error:
        return str(error)
    try:
        TensorRTBackend().version()
    except BackendUnavailableError as error:
        return str(error)
    return None


def has_driver() -> bool:
    """Return whether an NVIDIA driver is loaded.

    Without one, installing TensorRT makes no sense.
    """
    return any(Path(path).exists() for path in ("/proc/driver/nvidia/version", "/dev/nvidiactl"))


def find_python310() -> str:
    """Return a CPython 3.10."""
    candidates = [
        shutil.which("python3.10"),
        *map(str, Path.home().glob(".pyenv/versions/3.10.*/bin/python")),
    ]
    if shutil.which("uv"):
        found = subprocess.run(
            ["uv", "python", "find", "3.10"], capture_output=True, text=True, check=False
        )
        candidates.append(found.stdout.strip() or None)
    # Pyenv's shims are on PATH also for versions that are switched off.
    for candidate in filter(None, candidates):
        asked = [candidate, "-c", "import sys; sys.exit(sys.version_info[:2] != (3, 10))"]
        if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
            return candidate
    raise SystemExit(
        "TensorRT 8.6 needs CPython 3.10. Install it (python3.10, pyenv, or: uv python install 3.10)."
    )


def run_in_environment(directory: Path, arguments: list[str]) -> int:
    """Make the environment once, and run this script in it."""
    python = directory / "bin" / "python"
    if not (directory / "complete").is_file():
        print(f"installing TensorRT 8.6 into {directory} (about 2 GB to download)", flush=True)
        subprocess.run([find_python310(), "-m", "venv", "--clear", str(directory)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *REQUIREMENTS, *TENSORRT_86], check=True)
        (directory / "complete").touch()
    command = [str(python), __file__, "--here", *arguments]
    return subprocess.run(command, check=False).returncode


# ---------------------------------------------------------------------- the networks
def write_networks(
    directory: Path, exported: Path | None, *, wide_weights: bool, small: bool
) -> dict[str, Any]:
    """Write the ONNX files and return their paths by network and precision.

    Args:
        directory: where to.
        exported: an export_onnx directory of a run, or None.
        wide_weights: store quantized weights as FP32 + Q + DQ (TensorRT 8.6).
        small: leave out ResNet-50, for a trial on a machine without a GPU.
    """
    sys.path.append(str(REPOSITORY / "tests" / "qat_lib" / "helpers"))
    from reference_networks import RESNET50, ResidualNetwork, write_network

    form: Any = "qdq" if wide_weights else "int8"
    digits = ResidualNetwork(blocks=(1, 2, 2), widths=(16, 32, 64), stem=16)
    networks: dict[str, Any] = {}
    for name, network in {"default": digits, **({} if small else {"resnet50": RESNET50})}.items():
        precisions: tuple[Any, ...] = ("fp32", "fp16", "int8")
        networks[name] = {
            precision: write_network(
                directory / f"{name}-{precision}.onnx", network, precision, weights=form
            )
            for precision in precisions
        }
    if exported is not None:
        int8 = directory / "default-exported-int8.onnx"
        widen_weights(exported / "qat.onnx", int8) if wide_weights else shutil.copy(
            exported / "qat.onnx", int8
        )
        networks["default"] |= {"fp32": exported / "fp32.onnx", "int8": int8}
    return networks


def widen_weights(source: Path, target: Path) -> None:
    """Rewrite weights from INT8 + DQ to FP32 + Q + DQ.

    They stand for the same numbers bit by bit.
    """
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(str(source))
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in tensors:
            levels = numpy_helper.to_array(tensors[node.input[0]])
            scale = numpy_helper.to_array(tensors[node.input[1]])
            axis = next(
                (attribute.i for attribute in node.attribute if attribute.name == "axis"), 1
            )
            shape = (
                [-1 if i == axis else 1 for i in range(levels.ndim)]
                if scale.ndim
                else [1] * levels.ndim
            )
            weights = levels.astype(scale.dtype) * scale.reshape(shape)
            if not np.array_equal(np.rint(weights / scale.reshape(shape)), levels):
                raise SystemExit(
                    f"{source}: the weights of {node.name} can't be written as FP32 + Q without a change"
                )
            wide, quantized = f"{node.input[0]}/wide", f"{node.input[0]}/quantized"
            model.graph.initializer.append(numpy_helper.from_array(weights, wide))
            inputs = [wide, *node.input[1:]]
            nodes.append(
                helper.make_node(
                    "QuantizeLinear", inputs, [quantized], f"{node.name}/Quantize", axis=axis
                )
            )
            model.graph.initializer.remove(tensors.pop(node.input[0]))
            node.input[0] = quantized
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.checker.check_model(model)
    onnx.save(model, str(target))


# ---------------------------------------------------------------------- measurements
def validate(
    networks: dict[str, Any], directory: Path, *, typed: bool, seconds: float
) -> list[dict[str, Any]]:
    """Build, check and measure every engine.

    A failure becomes a row with its reason.
    """
    from qat_lib.errors import QatlineError

    rows = []
    for name, files in networks.items():
        for precision in ("fp32", "fp16", "int8"):
            # Up to TensorRT 8.6 FP16 is a flag on the FP32 graph, later it is the graph's type.
            onnx = (
                files["fp16"]
                if precision == "fp16" and typed
                else files["fp32" if precision == "fp16" else precision]
            )
            wanted = "fp16" if precision == "fp16" and not typed else "fp32"
            row: dict[str, Any] = {"network": name, "precision": precision, "onnx": onnx.name}
            try:
                row |= measure(onnx, directory / f"{name}-{precision}.engine", wanted, seconds)
            except QatlineError as error:
                row["error"] = f"{type(error).__name__}: {error}"
            rows.append(row)
            print(summary_line(row), flush=True)
    return rows


def measure(
    onnx: Path, path: Path, float_precision: Any, seconds: float, inputs: Any = None
) -> dict[str, Any]:
    """Return one engine's figures; ``inputs`` are real ones for the check."""
    from qat_lib.engines import BuildSpec, build_engine, layers_path, load_engine
    from qat_lib.engines.check import check_engine

    cache = path.parent / "timing.cache"
    spec = BuildSpec(
        backend="tensorrt",
        float_precision=float_precision,
        max_batch_size=max(BATCHES),
        timing_cache=cache,
        profile=True,
    )
    artifact = build_engine(onnx, spec, output=path)
    row: dict[str, Any] = {
        "build_seconds": artifact.manifest.build_seconds,
        "bytes": artifact.manifest.bytes,
        "precision_of_layers": asdict(artifact.manifest.precision),
        "warnings": list(artifact.warnings),
        "check": asdict(check_engine(path, onnx, inputs=inputs)),
    }
    with load_engine(path) as engine:
        row["latency"] = [
            engine.benchmark(batch_size=size, seconds=seconds).to_dict() for size in BATCHES
        ]
    if artifact.manifest.quantized:
        from qat_lib.analysis import analyze_onnx
        from qat_lib.analysis.comparison import compare

        row["prediction"] = compare(analyze_onnx(onnx), layers_path(path)).to_dict()
    row["layers"] = [
        {"name": layer.name, "precision": layer.precision, "ms": layer.time_ms}
        for layer in artifact.layers
    ]
    return row


def summary_line(row: dict[str, Any]) -> str:
    """Return one line for people."""
    head = f"{row['network']:>9} {row['precision']}"
    if "error" in row:
        return f"{head}  {row['error']}"
    single, large = row["latency"]
    layers = row["precision_of_layers"]
    return (
        f"{head}  batch 1: {single['end_to_end']['p50']:.3f} ms (compute {single['compute']['p50']:.3f}), batch "
        f"{large['batch_size']}: {large['throughput']:.0f}/s, INT8 layers {layers['int8_layers']} of "
        f"{layers['weighted_layers']}, difference from ONNX Runtime {row['check']['largest_difference']:.2g} of "
        f"{row['check']['bound']:.2g}, "
        f"{'passed' if row['check']['passed'] else 'FAILED'}"
    )


def run_here(options: argparse.Namespace) -> int:
    """Validate with this interpreter's TensorRT and write the results."""
    from qat_lib.engines.environment import cpu_device, git_state
    from qat_lib.engines.tensorrt.backend import TensorRTBackend
    from qat_lib.engines.tensorrt.capabilities import capabilities_of

    backend = TensorRTBackend()
    version = backend.version()
    capabilities = capabilities_of(version)
    with tempfile.TemporaryDirectory(prefix="qatline-gpu-") as name:
        directory = Path(name)
        wide = "int8" not in capabilities.weights
        networks = write_networks(directory, options.onnx, wide_weights=wide, small=options.small)
        rows = validate(
            networks, directory, typed=capabilities.strongly_typed, seconds=options.seconds
        )
    results = {
        "tensorrt": version,
        "device": dict(backend.device()),
        "host": {
            "cpu": cpu_device()["name"],
            "python": platform.python_version(),
            "system": platform.platform(),
        },
        "git": git_state(REPOSITORY),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "default_network": "exported by a run"
        if options.onnx
        else "of the same kind, random weights",
        "engines": rows,
    }
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    print(f"results: {options.output}")
    return 0 if all("error" not in row and row["check"]["passed"] for row in rows) else 1


def main(arguments: list[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("gpu_validation.json"))
    parser.add_argument(
        "--onnx", type=Path, help="a run's export_onnx directory, with fp32.onnx and qat.onnx"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="time of each benchmark")
    parser.add_argument("--small", action="store_true", help="leave out ResNet-50")
    parser.add_argument(
        "--environment", type=Path, default=Path.home() / ".cache" / "qatline" / "tensorrt-8.6"
    )
    parser.add_argument("--here", action="store_true", help="use this interpreter, whatever it has")
    options = parser.parse_args(arguments)
    if options.here:
        reason = find_tensorrt_here()
        if reason:
            raise SystemExit(reason)
        return run_here(options)
    if find_tensorrt_here() is None:
        return run_here(options)
    if not has_driver():
        raise SystemExit(
            "There is no NVIDIA driver here: nothing to validate on. Run this on a machine with a GPU."
        )
    return run_in_environment(options.environment, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
