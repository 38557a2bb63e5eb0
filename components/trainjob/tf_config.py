"""TF_CONFIG of a pod, derived from its JobSet names and indices.

JobSet names each pod ``<jobset>-<replicated job>-<job index>-<pod index>``, and a headless service
named like the JobSet makes ``<name>.<service>`` a host name. Kubeflow Trainer does not set
TF_CONFIG, since its runtimes target other frameworks.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from qat_lib.errors import ConfigError, StepError
from qatline.components.support.retries import repeated
from qatline.components.workers.worker_config import (
    TF_CONFIG_VARIABLE,
    WorkerConfig,
    parse_worker_config,
)

WORKERS_VARIABLE = "QATLINE_WORKERS"
"""Number of workers, set by the launcher."""

INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
"""Index of the pod, set by Kubernetes in indexed Jobs."""

JOBSET_VARIABLE = "QATLINE_JOBSET"
REPLICATED_JOB_VARIABLE = "QATLINE_REPLICATED_JOB"
JOB_INDEX_VARIABLE = "QATLINE_JOB_INDEX"
ADDRESSES_VARIABLE = "QATLINE_WORKER_ADDRESSES"
"""``host:port`` of each worker, separated by commas, instead of the names of the JobSet."""

PORT = 2222


def derive_worker_config(environment: Mapping[str, str]) -> WorkerConfig:
    """Return this pod's position among the workers.

    Args:
        environment: environment variables of the pod. An existing ``TF_CONFIG`` has priority.

    Raises:
        ConfigError: a variable is missing, or the index is out of range.
        StepError: ``TF_CONFIG`` does not list workers and the index of one.

    Examples:
        >>> pod = {"QATLINE_JOBSET": "t", "QATLINE_WORKERS": "2", "JOB_COMPLETION_INDEX": "1"}
        >>> derive_worker_config(pod).hosts
        ('t-node-0-0.t:2222', 't-node-0-1.t:2222')
    """
    if given := environment.get(TF_CONFIG_VARIABLE):
        return parse_worker_config(given)
    count = _number(environment, WORKERS_VARIABLE)
    index = _number(environment, INDEX_VARIABLE)
    addresses = _addresses(environment, count)
    if len(addresses) != count or not 0 <= index < count:
        raise ConfigError(
            f"Expected {count} addresses and an index below {count}, received {len(addresses)} "
            f"addresses and the index {index}. The number of nodes of the TrainJob and "
            f"{WORKERS_VARIABLE} must be one number."
        )
    return WorkerConfig(hosts=tuple(addresses), index=index)


def wait_for_hosts(
    addresses: Sequence[str],
    patience: float,
    *,
    resolve: Callable[[str], object] = socket.gethostbyname,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until every host name resolves; a pod's name resolves after its start.

    Args:
        addresses: ``host:port`` of each worker.
        patience: maximum seconds for all hosts together.
        resolve: resolves a host name; raises OSError on failure.
        sleep: waits between two attempts.
        clock: monotonic clock in seconds.

    Raises:
        StepError: a host name does not resolve in time.
    """
    deadline = clock() + patience
    for address in addresses:
        host = address.rpartition(":")[0]
        try:
            repeated(
                partial(resolve, host),
                lambda error: isinstance(error, OSError),
                seconds=deadline - clock(),
                clock=clock,
                sleep=sleep,
            )
        except OSError as error:
            raise StepError(
                f"Expected an address of every worker within {patience:.0f} s; {host} has none. "
                "Its pod was not started, or the JobSet has no service for host names "
                "(network.enableDNSHostnames). See: kubectl get pods."
            ) from error


def _addresses(environment: Mapping[str, str], count: int) -> list[str]:
    if given := environment.get(ADDRESSES_VARIABLE):
        return given.split(",")
    jobset = environment.get(JOBSET_VARIABLE)
    if not jobset:
        raise _missing(JOBSET_VARIABLE, environment)
    job = environment.get(REPLICATED_JOB_VARIABLE) or "node"
    number = environment.get(JOB_INDEX_VARIABLE) or "0"
    return [f"{jobset}-{job}-{number}-{index}.{jobset}:{PORT}" for index in range(count)]


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isdecimal():
        raise _missing(name, environment)
    return int(text)


def _missing(name: str, environment: Mapping[str, str]) -> ConfigError:
    return ConfigError(
        f"Expected {name} in the environment of the pod, received {environment.get(name)!r}. Apply "
        "the runtime again: qatline cluster runtime | kubectl apply --server-side -f -"
    )
