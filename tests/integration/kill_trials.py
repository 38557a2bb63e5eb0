"""Kill first runs at random, resume them, and compare the results.

The reference is a run that was left alone.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Start = Callable[[Path, Sequence[str]], "subprocess.Popen[str]"]
VICTIMS = ("command", "launcher", "step", "everything")
LIMIT = 850.0  # seconds for a whole run


@dataclass(frozen=True)
class Kill:
    """The time to kill a first run, and which process.

    The time is in seconds after its start.
    """

    moment: float
    victim: str


def plan_kills(count: int, *, seconds: float, seed: int) -> list[Kill]:
    """Draw random moments in a run of ``seconds``, mostly early ones.

    Half of them are in its first quarter, about a tenth in its first hundredth.
    """
    source = random.Random(seed)
    return [Kill(seconds * source.random() ** 2, source.choice(VICTIMS)) for _ in range(count)]


def outcome(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Wait for a run with ``--json`` to succeed; return its result."""
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, f"{out}\n{err}"
    return json.loads(out)  # type: ignore[no-any-return]


def kill_first_run(start: Start, folder: Path, kill: Kill) -> bool:
    """Start a first run in ``folder`` and kill it.

    Return False when it had ended before.
    """
    process = start(folder, ["run"])
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(kill.moment)
    family = [process.pid, *descendants(process.pid)]
    _kill(process.pid, family, kill.victim)
    _, err = process.communicate(timeout=LIMIT)
    deadline = time.monotonic() + 60
    while left := [pid for pid in family if _is_alive(pid)]:
        assert time.monotonic() < deadline, f"processes {left} outlived the run: {err}"
        time.sleep(0.05)
    records = [json.loads(path.read_text()) for path in folder.glob("runs/[!.]*/run.json")]
    return process.returncode != 0 and all(record["status"] != "finished" for record in records)


def _kill(command: int, family: Sequence[int], victim: str) -> None:
    chosen = {
        "command": [command],
        "launcher": family[1:2],
        "step": [pid for pid in family if "executor_main" in _command_line(pid)][-1:],
        "everything": family,
    }[victim]
    for pid in chosen or [command]:  # before there is a launcher or a step
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def resume(start: Start, folder: Path) -> dict[str, Any]:
    """Resume the killed run of ``folder``, or restart it.

    It is started again when it was killed before it had a record.
    """
    begun = list(folder.glob("runs/[!.]*/run.json"))
    return outcome(start(folder, ["resume" if begun else "run", "--json"]))


def left_behind(folder: Path) -> list[Path]:
    """Return unfinished files below the runs, after a run that finished."""
    unfinished = ("*.tmp", ".work-*", ".mlflow.db.*", "mlflow.db-*")
    return [path for pattern in unfinished for path in (folder / "runs").rglob(pattern)]


def digests(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of each step's output."""
    manifests = sorted((Path(result["run_dir"]) / "artifacts").glob("*/manifest.json"))
    return {path.parent.name: json.loads(path.read_text())["digest"] for path in manifests}


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that a process started, and theirs, outermost first."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield int(child)
        yield from descendants(int(child))


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
