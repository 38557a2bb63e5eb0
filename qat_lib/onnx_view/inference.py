"""ONNX's shape inference, in this process or in a resource-limited one.

``python -m qat_lib.onnx_view.inference`` reads a ModelProto from stdin and writes it with inferred
types to stdout.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from subprocess import SubprocessError

import onnx
import onnx.shape_inference
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx.shape_inference import InferenceError

MAX_CHILD_BYTES = 3 * 2**28
MAX_CHILD_SECONDS = 3


def infer(model: onnx.ModelProto, *, follow_values: bool) -> onnx.ModelProto:
    """Return ``model`` with inferred types, unchanged if inference fails.

    Args:
        model: a model without large weights.
        follow_values: whether to propagate the values of shape arithmetic, too.
    """
    try:
        return onnx.shape_inference.infer_shapes(
            model, check_type=False, strict_mode=False, data_prop=follow_values
        )
    except (RuntimeError, ValueError, TypeError, InferenceError):
        return model


def infer_in_child(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Infer types and shape arithmetic values in a resource-limited process.

    Returns:
        The model, or None if the process exceeds ``MAX_CHILD_BYTES`` or ``MAX_CHILD_SECONDS``.
    """
    command = [sys.executable, "-m", "qat_lib.onnx_view.inference"]
    try:
        run = subprocess.run(
            command,
            input=model.SerializeToString(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # The child limits its CPU time itself; wall-clock time also includes its imports and
            # waiting.
            timeout=4 * MAX_CHILD_SECONDS,
            check=True,
        )
        return onnx.ModelProto.FromString(run.stdout)
    except (OSError, SubprocessError, DecodeError):
        return None


def _main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CHILD_SECONDS, MAX_CHILD_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_CHILD_BYTES, MAX_CHILD_BYTES))
    model = onnx.ModelProto.FromString(sys.stdin.buffer.read())
    sys.stdout.buffer.write(infer(model, follow_values=True).SerializeToString())


if __name__ == "__main__":
    _main()
