"""Run tests in forks of a process with the heavy packages imported.

It reads and answers one JSON object a line. Nothing of the packages may run before the fork:
TensorFlow starts its threads with the first operation, and a fork has none of its parent's threads.
The project's own modules are not imported here, so that each fork reads the mutated ones.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from typing import Any, NoReturn

HEAVY = (
    "numpy", "pytest", "hypothesis.extra.numpy", "onnx", "onnxruntime", "onnx_ir", "tensorflow", "keras", "tf2onnx",
    "pydantic", "typer", "rich.console", "yaml", "boto3", "moto", "sqlalchemy",
    "mlflow.onnx", "mlflow.tracking", "mlflow.store.tracking.sqlalchemy_store", "alembic", "sklearn.datasets",
    # Plugins, which pytest would parse anew in each fork to rewrite their assertions.
    "_hypothesis_pytestplugin", "xdist.plugin", "xdist.looponfail", "pytest_timeout", "anyio.pytest_plugin",
    "platformdirs.pytest_plugin",
)  # fmt: skip
OPTIONS = (
    "-n", "0", "-x", "-q", "--tb=short", "-p", "no:cacheprovider",
    "-m", "not slow and not gpu and not live and not mutation",  # the matrix is part of the tests here
    "-W", "ignore::pytest.PytestAssertRewriteWarning",  # Hypothesis is imported before pytest can rewrite it
)  # fmt: skip
MEMORY = 8 * 2**30  # bytes that a mutant may allocate
TESTS_FAILED, NO_TESTS_FAILED = 1, 0
# A mutant that breaks an import or a hook of conftest ends the collection.
INTERRUPTED, INTERNAL_ERROR, USAGE_ERROR = 2, 3, 4


def main() -> None:
    """Serve requests ``{"tests": [...], "timeout": seconds, "log": path}`` until stdin ends."""
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Pytest collects garbage at its end, which takes a second among the objects of all these
    # packages.
    gc.freeze()
    answer({"ready": True})
    for line in sys.stdin:
        answer(run(**json.loads(line)))


def answer(content: dict[str, Any]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def run(tests: list[str], timeout: float, log: str) -> dict[str, Any]:
    """Return the tests' outcome: ``survived``, ``killed``, ``timeout`` or ``error``.

    After ``error`` the tests could not run.
    """
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        run_tests(tests, log)
    code = wait(child, started + timeout)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # what the tests left running
    return {"outcome": outcome(code), "code": code, "seconds": round(time.monotonic() - started, 2)}


def run_tests(tests: list[str], log: str) -> NoReturn:
    """Run pytest, and end this process with its exit code."""
    code = INTERNAL_ERROR
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        import pytest

        code = int(pytest.main([*OPTIONS, *tests]))
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(child: int, deadline: float) -> int | None:
    """Return a child's exit code; None if it had to be ended.

    It is negative for a signal.
    """
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def outcome(code: int | None) -> str:
    """Return what an exit code of pytest says about a mutant."""
    if code is None:
        return "timeout"
    if code == NO_TESTS_FAILED:
        return "survived"
    killed = code < 0 or code in (TESTS_FAILED, INTERRUPTED, INTERNAL_ERROR, USAGE_ERROR)
    return "killed" if killed else "error"


if __name__ == "__main__":
    main()
