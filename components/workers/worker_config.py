"""Worker configuration of a training in the environment: ``TF_CONFIG``."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from qat_lib.errors import StepError

TF_CONFIG_VARIABLE = "TF_CONFIG"


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """Position of a worker.

    Attributes:
        hosts: ``host:port`` of each worker, worker 0 first.
        index: index of this worker.
    """

    hosts: tuple[str, ...]
    index: int

    def to_text(self) -> str:
        """Return the value of ``TF_CONFIG``."""
        task = {"type": "worker", "index": self.index}
        return json.dumps({"cluster": {"worker": list(self.hosts)}, "task": task})


def read_worker_config() -> WorkerConfig | None:
    """Return the content of ``TF_CONFIG``, or None if it is not set.

    Raises:
        StepError: it does not list workers and the index of one.
    """
    text = os.environ.get(TF_CONFIG_VARIABLE)
    return parse_worker_config(text) if text else None


def parse_worker_config(text: str) -> WorkerConfig:
    """Return the content of a ``TF_CONFIG`` text.

    Raises:
        StepError: it does not list workers and the index of one.
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
