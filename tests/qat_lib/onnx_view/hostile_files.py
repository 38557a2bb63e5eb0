"""Files that are invalid or broken, or ask engines for too much.

``python hostile_files.py FOLDER [OPENER...]`` writes them, opens each with every function and
command that opens ONNX files, and prints one JSON object a case: the outcome, CPU seconds and the
peak of memory. With names of openers, only these open the files of ``HOSTILE``.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qat_lib.errors import QatlineError

Make = Callable[[Path], None]


def constant(name: str, value: Any, dtype: Any = np.int64) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value, dtype), name)


def node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [output], name=output, **attributes)


def value(name: str, shape: Sequence[int] | None = (1, 4), kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def graph(
    nodes: Sequence[onnx.NodeProto], constants: Sequence[onnx.TensorProto] = ()
) -> onnx.ModelProto:
    body = helper.make_graph(nodes, "g", [value("x")], [value("y", ["n"])], constants)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def saved(
    *nodes: onnx.NodeProto, constants: Sequence[onnx.TensorProto] = (), reduce: str = ""
) -> Make:
    """Return a model writer.

    The sum of the tensor ``reduce`` is added to the model's input.
    """
    tail = [node("ReduceSum", [reduce], "sum"), node("Add", ["x", "sum"], "y")] if reduce else []

    def make(path: Path) -> None:
        path.write_bytes(graph([*nodes, *tail], constants).SerializeToString())

    return make


def written(data: bytes) -> Make:
    return lambda path: path.write_bytes(data) and None


def external(location: str, prepare: Callable[[Path], None] = lambda folder: None) -> Make:
    """Return what writes a model whose weight lies in the file ``location``."""

    def make(path: Path) -> None:
        model = graph([node("Add", ["x", "w"], "y")], [constant("w", np.ones(4), np.float32)])
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        path.write_bytes(model.SerializeToString())
        prepare(path.parent)

    return make


def scaled(scale: float) -> Make:
    pair = [constant("scale", scale, np.float32), constant("zero", 0, np.int8)]
    quantize = node("QuantizeLinear", ["x", "scale", "zero"], "q")
    return saved(quantize, node("DequantizeLinear", ["q", "scale", "zero"], "y"), constants=pair)


RANGE = node("Range", ["from", "to", "step"], "r")
BIG_RANGE = [constant("from", 0), constant("to", 10**11), constant("step", 1)]
BIG = constant("size", [100_000, 1_000_000])
TENS = constant("ten", [10])

#: Files that nothing opens.
BROKEN: dict[str, Make] = {
    "empty": written(b""),
    "text": written(b"not an onnx file\n"),
    "cut off": written(graph([node("Relu", ["x"], "y")]).SerializeToString()[:40]),
    "directory": lambda path: path.mkdir(),
    "pipe": lambda path: os.mkfifo(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "cycle": saved(
        node("Add", ["x", "b"], "a"), node("Relu", ["a"], "b"), node("Relu", ["b"], "y")
    ),
    "two producers": saved(node("Relu", ["x"], "y"), node("Neg", ["x"], "y")),
    "no producer": saved(node("Relu", ["nothing"], "y")),
    "data outside": external("../secret"),
    "data missing": external("none.bin"),
    "data is a pipe": external("pipe.bin", lambda folder: os.mkfifo(folder / "pipe.bin")),
    "data links out": external("l.bin", lambda folder: (folder / "l.bin").symlink_to("/etc/hosts")),
    "data too short": external(
        "w.bin", lambda folder: (folder / "w.bin").write_bytes(b"1") and None
    ),
}
#: Files that can be read, but not built or run: a tensor is too large, a scale unusable.
HOSTILE: dict[str, Make] = {
    "integer range": saved(RANGE, node("Cast", ["r"], "f", to=1), constants=BIG_RANGE, reduce="f"),
    "constant of shape": saved(node("ConstantOfShape", ["size"], "r"), constants=[BIG], reduce="r"),
    "expanded input": saved(
        node("Expand", ["x", "size"], "r"),
        node("ReduceMax", ["r"], "y"),
        constants=[constant("size", [100_000, 100_000, 1, 4])],
    ),
    "tiles": saved(
        node("Tile", ["one", "ten"], "t0"),
        *(node("Tile", [f"t{i}", "ten"], f"t{i + 1}") for i in range(11)),
        constants=[TENS, constant("one", [1.0], np.float32)],
        reduce="t11",
    ),
    "pads": saved(
        node("Pad", ["x", "pads"], "p0"),
        *(node("Pad", [f"p{i}", "pads"], f"p{i + 1}") for i in range(5)),
        node("ReduceMax", ["p5"], "y"),
        constants=[constant("pads", [100_000, 1000, 0, 0])],
    ),
    "scale zero": scaled(0.0),
    "scale negative": scaled(-1.0),
    "scale nan": scaled(float("nan")),
    "scale infinite": scaled(float("inf")),
    "scale subnormal": scaled(1e-40),
}


#: They run a file as it is, whatever its scales are.
RUNNERS = frozenset({"reference_session", "check_parity"})


def openers(output: Path) -> dict[str, Callable[[Path], Any]]:
    """Return every function and command that opens ONNX files, readers first."""
    from typer.testing import CliRunner

    from qat_lib.analysis import analyze_onnx
    from qat_lib.engines import BuildSpec, build_engine
    from qat_lib.engines.onnx_graph import read_summary
    from qat_lib.engines.onnxruntime import reference_session
    from qat_lib.export.verify import verify_onnx
    from qat_lib.keras.export.parity import check_parity
    from qatline.pipelines.cli.main import app

    def command(*arguments: str) -> Callable[[Path], Any]:
        def run(path: Path) -> None:
            given = [str(path) if each == "FILE" else each for each in arguments]
            result = CliRunner().invoke(app, given)
            if result.exit_code:
                raise ValueError(result.output)

        return run

    def build(backend: str) -> Callable[[Path], Any]:
        spec = BuildSpec(backend=backend)  # type: ignore[arg-type]
        return lambda path: build_engine(path, spec, output=output)

    return {
        "analyze_onnx": analyze_onnx,
        "read_summary": read_summary,
        "verify_onnx": verify_onnx,
        "analyze": command("analyze", "FILE", "--fail-on", "error"),
        "verify": command("verify", "FILE"),
        "build_engine openvino": build("openvino"),
        "build_engine onnxruntime": build("onnxruntime"),
        "reference_session": reference_session,
        "check_parity": lambda path: check_parity(None, path, np.zeros((1, 4), np.float32)),
        "build-engine": command("build-engine", "FILE", "-o", str(output)),
    }


def cpu_seconds() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, kinds))


def peak_mib() -> int:
    """Return the peak memory of this process and its children.

    getrusage would count what pytest had before exec.
    """
    status = Path("/proc/self/status").read_text()
    own = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) // 1024


def main(folder: Path, chosen: Sequence[str]) -> None:
    output = folder / "out.engine"
    opened = openers(output)
    for name, make in (BROKEN | HOSTILE).items():
        path = folder / name.replace(" ", "_") / "model.onnx"
        path.parent.mkdir()
        make(path)
        for opener, run in opened.items():
            if chosen and name in HOSTILE and opener not in chosen:
                continue
            if name.startswith("scale") and opener in RUNNERS:
                continue
            began, message = cpu_seconds(), ""
            with contextlib.redirect_stdout(sys.stderr):
                try:
                    run(path)
                except (QatlineError, ValueError) as error:
                    message = f"{type(error).__name__}: {error}"
            case = {"file": name, "opener": opener, "message": message, "left": output.exists()}
            case |= {"seconds": cpu_seconds() - began, "peak_mib": peak_mib()}
            sys.stdout.write(json.dumps(case) + "\n")
            sys.stdout.flush()
            output.unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
