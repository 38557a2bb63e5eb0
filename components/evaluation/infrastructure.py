"""Check of an engine file before promotion.

The file must load in a fresh process and reproduce the outputs of the ONNX reference.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from qatline.components.artifacts.evaluation import FileCheck

_REQUESTS = 32
_TIMEOUT_SECONDS = 600


def check_in_fresh_process(
    engine: Path,
    onnx: Path,
    *,
    seed: int,
    requests: int = _REQUESTS,
    inputs: Path | None = None,
) -> FileCheck:
    """Run ``qat_lib.engines.check`` on an engine file in a separate interpreter.

    Args:
        engine: the engine file.
        onnx: the ONNX file of the reference.
        seed: seed of the random requests.
        requests: number of random requests.
        inputs: ``.npy`` file of additional real inputs, or ``.npz`` file of several by name.

    Returns:
        The result; if the process crashed or hung, ``passed`` is False and ``message`` contains the
        reason.
    """
    command = [sys.executable, "-m", "qat_lib.engines.check", str(engine), "--onnx", str(onnx)]
    command += ["--requests", str(requests), "--seed", str(seed)]
    command += ["--layers", "failed"]
    if inputs is not None:
        command += ["--inputs", str(inputs)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return _failed(engine, f"did not finish within {_TIMEOUT_SECONDS} s")
    if done.returncode < 0:
        return _failed(engine, f"was ended by signal {-done.returncode}")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return _failed(engine, f"ended with exit code {done.returncode}: {last}")
    # Libraries may print to stdout before the result: only the last line is JSON.
    return FileCheck.model_validate(json.loads(done.stdout.splitlines()[-1]))


def summarize_check(checks: Mapping[str, FileCheck], candidate: str) -> FileCheck:
    """Return the candidate's check with all checks attached; it passes if all engines pass."""
    failed = [name for name, check in checks.items() if not check.passed]
    worst = failed[0] if failed and candidate not in failed else candidate
    return checks[worst].model_copy(update={"passed": not failed, "engines": dict(checks)})


def _failed(engine: Path, what: str) -> FileCheck:
    return FileCheck(
        passed=False,
        message=f"The fresh process that loaded {engine.name} {what}.",
        requests=0,
        largest_difference=None,
        memory_mib=None,
    )
