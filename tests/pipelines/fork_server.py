"""Run command lines in forks of a process with the libraries imported.

Reads a JSON object a line: ``{"arguments": [...], "folder": ...}``. Answers with exit code, output,
processor seconds, and MiB of memory beyond what the imports take. No tensor is made before a fork:
TensorFlow's threads would not live on in the child.
"""

import importlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PRELOADED = (
    "tensorflow",
    "keras",
    "h5py",
    "onnx.checker",
    "onnx.inliner",
    "onnxruntime",
    "openvino",
    "PIL.Image",
    "PIL.ImageOps",
    "pydantic",
    "rich.console",
    "qat_lib.export",
    "qat_lib.analysis",
    "qat_lib.engines",
    "qatline.components.steps.prepare_data",
    "qatline.pipelines.cli.diagnose",
    "qatline.pipelines.cli.quantize",
    "qatline.pipelines.cli.model_views",
    "qatline.pipelines.cluster.compile",
    "qatline.pipelines.config.run_config",
)
HANGS_AFTER_SECONDS = 90


def prepare_data(path: str, kind: str, out: str) -> None:
    """The step ``prepare_data`` on a file or a folder."""
    from qatline.components.settings import DataSettings
    from qatline.components.steps.prepare_data import prepare_data_step
    from qatline.components.support.events import NullProgress

    folder = Path(out)
    folder.mkdir()
    try:
        settings = DataSettings(kind=kind, path=path)  # type: ignore[arg-type]
        prepare_data_step(folder, data=settings, seed=0, progress=NullProgress())
    except BaseException:
        folder.rmdir()
        raise


def read_dataset(path: str) -> None:
    """Every reader of a prepared data set."""
    from qatline.components.data.reader import load_split

    for split in ("train", "test"):
        load_split(Path(path), split)


def load_weights(model: str, path: str) -> None:
    """Weights from a file into a model."""
    import qat_lib
    from qat_lib.models.weights import load_weights

    load_weights(qat_lib.load_model(model), path)


STEPS: dict[str, Callable[..., None]] = {
    "prepare-data": prepare_data,
    "read-dataset": read_dataset,
    "load-weights": load_weights,
}


def execute(arguments: list[str]) -> None:
    """Run a CLI command or, reported equally, one of the steps above."""
    from qatline.pipelines.cli.errors import reported
    from qatline.pipelines.cli.main import app

    if arguments[0] in STEPS:
        import typer

        try:
            with reported():
                STEPS[arguments[0]](*arguments[1:])
        except typer.Exit as error:
            raise SystemExit(error.exit_code) from None
        raise SystemExit(0)
    app(arguments)


def run(arguments: list[str], folder: Path) -> dict[str, Any]:
    """Fork, run, and wait."""
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _be_the_child(arguments, folder)
    status, usage = _wait(child, started)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "seconds": usage.ru_utime + usage.ru_stime,
        "mib": usage.ru_maxrss / 1024,
        "stdout": (folder / ".stdout").read_text(errors="replace"),
        "stderr": (folder / ".stderr").read_text(errors="replace"),
    }


def _wait(child: int, started: float) -> tuple[int, resource.struct_rusage]:
    while True:
        found, status, usage = os.wait4(child, os.WNOHANG)
        if found:
            return status, usage
        if time.monotonic() - started > HANGS_AFTER_SECONDS:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)


def _be_the_child(arguments: list[str], folder: Path) -> None:
    code = 70
    try:
        os.chdir(folder)
        for name, number in ((".stdout", 1), (".stderr", 2)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # Far beyond the limit that is checked: it keeps a bomb from the machine.
        resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))
        try:
            execute(arguments)
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def main() -> None:
    """Answer requests until standard input ends."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        answer = run(request["arguments"], Path(request["folder"]))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
