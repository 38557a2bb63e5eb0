"""What the environment says about the workers of a training: ``TF_CONFIG``."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from qat_lib.errors import StepError

TF_CONFIG_VARIABLE = "TF_CONFIG"


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """A worker's place.

    Attributes:
        hosts: ``host:port`` of each worker, worker 0 first.
        index: of this one.
    """

    hosts: tuple[str, ...]
    index: int

    def to_text(self) -> str:
        """Return the value of ``TF_CONFIG``."""
        task = {"type": "worker", "index": self.index}
        return json.dumps({"cluster": {"worker": list(self.hosts)}, "task": task})


def read_worker_config() -> WorkerConfig | None:
    """Return what ``TF_CONFIG`` says; None where it is unset.

    Raises:
        StepError: it is something else than workers and the index of one.
    """
    text = os.environ.get(TF_CONFIG_VARIABLE)
    return parse_worker_config(text) if text else None


def parse_worker_config(text: str) -> WorkerConfig:
    """Return what the text of ``TF_CONFIG`` says.

    Raises:
        StepError: it is something else than workers and the index of one.
    """
    try:
        content = json.loads(text)
        cluster, task = content["cluster"], content["task"]
        hosts, index = tuple(map(str, cluster["worker"])), int(task["index"])
        if set(cluster) != {"worker"} or task["type"] != "worker" or not 0 <= index < len(hosts):
            raise ValueError("other tasks than workers, or no such index")
    except (ValueError, KeyError, TypeError) as error:
        raise StepError(
            'TF_CONFIG: expected {"cluster": {"worker": ["host:port", ...]}, "task": {"type": '
            f'"worker", "index": 0}}}}, received {text!r} ({error!r}).'
        ) from error
    return WorkerConfig(hosts=hosts, index=index)
