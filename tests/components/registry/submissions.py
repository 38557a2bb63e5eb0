"""Submit candidates to a real registry, each from a process of its own.

``python submissions.py`` reads one JSON object a line, and forks a process for each: MLflow is
imported once. A process may be told to kill or to stop itself before one of its writes.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qatline.components.artifacts.promotion import Reason, Verdict
from qatline.components.registry.access import current_champion
from qatline.components.registry.mlflow_registry import MlflowRegistry
from qatline.components.registry.promotion import Candidate, PromotionOptions, submit_candidate
from qatline.components.registry.registry import RegisteredVersion

_WRITES = frozenset(
    (
        *("ensure", "remove", "set_tag", "delete_tag", "set_alias", "delete_alias"),
        *("upload", "discard_upload", "create_version", "set_version_tags"),
    )
)


@dataclass(kw_only=True)
class Submission:
    """A candidate with a true accuracy, by which it is judged.

    Attributes:
        name: the registered model.
        digest: what it is known by.
        accuracy: the gate promotes what is more accurate than the champion.
        kill_at: number of the write before which the process kills itself; -1 for never.
        stop_at: the same for a process that stops.
        wait_for: file to wait for between judging and submitting; empty for none.
        lease: seconds of the lock's lease.
    """

    name: str
    digest: str
    accuracy: int
    kill_at: int = -1
    stop_at: int = -1
    wait_for: str = ""
    lease: float = 60.0


class Fragile:
    """A registry whose process ends, or stops, before one of its writes."""

    def __init__(
        self, registry: MlflowRegistry, submission: Submission, writes: Iterator[int]
    ) -> None:
        self._registry, self._submission, self._writes = registry, submission, writes

    def lock(self, number: int) -> Fragile:
        return Fragile(self._registry.lock(number), self._submission, self._writes)

    def __getattr__(self, name: str) -> Any:
        if name in _WRITES:
            write = next(self._writes)
            if write == self._submission.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if write == self._submission.stop_at:
                os.kill(os.getpid(), signal.SIGSTOP)
        return getattr(self._registry, name)


class Submitter:
    """The process that forks; each submission has an answer in ``folder``."""

    def __init__(self, uri: str, experiment: str, folder: Path) -> None:
        self._folder, self._count = folder, 0
        root = Path(__file__).parents[3]
        environment = {**os.environ, "MLFLOW_TRACKING_URI": uri, "PYTHONWARNINGS": "ignore"}
        environment |= {
            "MLFLOW_EXPERIMENT_ID": experiment,
            "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
        }
        self._log = (folder / "submissions.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), str(folder)],
            stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, text=True,
            env=environment, start_new_session=True,
        )  # fmt: skip

    def start(self, submission: Submission) -> int:
        """Start a submission; return its number."""
        assert self._process.stdin is not None
        self._count += 1
        content = {"number": self._count, **vars(submission)}
        self._process.stdin.write(json.dumps(content) + "\n")
        self._process.stdin.flush()
        return self._count

    def answer(self, number: int, seconds: float = 120.0) -> dict[str, Any]:
        """Wait for the end of a submission; its answer has ``signal`` if it was killed."""
        path, deadline = self._folder / f"{number}.json", time.monotonic() + seconds
        while not path.exists():
            if time.monotonic() > deadline or self._process.poll() is not None:
                log = (self._folder / "submissions.log").read_text()[-3000:]
                raise AssertionError(f"no answer of submission {number}: {log}")
            time.sleep(0.02)
        return dict(json.loads(path.read_text()))

    def run(self, submission: Submission) -> dict[str, Any]:
        """Submit, and wait for the answer."""
        return self.answer(self.start(submission))

    def pid(self, number: int) -> int:
        """Return the process of a submission."""
        path, deadline = self._folder / f"{number}.pid", time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return int(path.read_text())

    def close(self) -> None:
        """End the process."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._log.close()


@contextmanager
def submitter(uri: str, experiment: str, folder: Path) -> Iterator[Submitter]:
    """Start what submits to a store, and end it."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Submitter(uri, experiment, folder)
    try:
        yield made
    finally:
        made.close()


def judge(accuracy: int, champion: RegisteredVersion | None, evaluation: str) -> Verdict:
    """Promote what is more accurate than the champion."""
    best = int(champion.tags["accuracy"]) if champion else 0
    good = accuracy > best
    return Verdict(
        verdict="promote" if good else "reject",
        reasons=(Reason(check="champion_gain", passed=good),),
        champion=champion.digest if champion else "",
        evaluation=evaluation,
    )


def submit(wanted: Submission, folder: Path) -> dict[str, Any]:
    """Judge a candidate, wait if told so, and submit it."""
    from mlflow import MlflowClient

    client, uri = MlflowClient(), os.environ["MLFLOW_TRACKING_URI"]
    assert client.tracking_uri == uri
    real = MlflowRegistry(client, wanted.name, experiment_id=os.environ["MLFLOW_EXPERIMENT_ID"])
    registry = Fragile(real, wanted, itertools.count())
    verdict = judge(wanted.accuracy, current_champion(real), "seen")
    (folder / f"judged-{wanted.digest}").touch()
    while wanted.wait_for and not Path(wanted.wait_for).exists():
        time.sleep(0.01)
    files = folder / f"files-{wanted.digest}"
    files.mkdir(exist_ok=True)
    (files / "model.onnx").write_text(wanted.digest)

    def tags(final: Verdict) -> Mapping[str, str]:
        return {
            "accuracy": str(wanted.accuracy),
            "qatline.verdict": final.verdict,
            "qatline.evaluation": final.evaluation,
        }

    candidate = Candidate(
        digest=wanted.digest,
        verdict=verdict,
        folder=lambda: files,
        tags=tags,
        describe=lambda final: f"accuracy {wanted.accuracy}",
        by=f"run {wanted.digest}",
    )
    options = PromotionOptions(
        judge_again=lambda champion: judge(wanted.accuracy, champion, "again"),
        lease=wanted.lease,
        waiting=lambda owner: (folder / f"waiting-{wanted.digest}").touch(),
    )
    outcome = submit_candidate(registry, candidate, options)  # type: ignore[arg-type]
    return outcome.to_dict()


def _serve(folder: Path) -> None:
    import mlflow.store.model_registry.sqlalchemy_store
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - imported once for all

    for line in sys.stdin:
        content = json.loads(line)
        number = content.pop("number")
        if os.fork():
            continue
        worker = os.fork()  # its parent waits for it, however it ends
        if worker:
            beside = folder / f"{number}.pid.part"
            beside.write_text(str(worker))
            beside.replace(folder / f"{number}.pid")
            _, status = os.waitpid(worker, 0)
            if os.WIFSIGNALED(status):
                _write(folder, number, {"signal": os.WTERMSIG(status)})
        else:
            try:
                _write(folder, number, submit(Submission(**content), folder))
            except Exception as error:  # noqa: BLE001 - the answer of a process
                _write(folder, number, {"error": type(error).__name__, "message": str(error)})
        os._exit(0)


def _write(folder: Path, number: int, content: Mapping[str, Any]) -> None:
    beside = folder / f"{number}.part"
    beside.write_text(json.dumps(content))
    beside.replace(folder / f"{number}.json")


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _serve(Path(sys.argv[1]))
