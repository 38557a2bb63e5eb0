"""The pods of a fake cluster's TrainJobs as processes of this machine, on loopback.

What Kubernetes, JobSet and Trainer would do: variables from labels and secrets, an index for each
pod, the end of all when one fails, conditions and logs.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fake_kubernetes import FakeKubernetes, manifests

ROOT = Path(__file__).parents[3]


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class LocalPods:
    """Starts and ends the pods of a fake cluster.

    Args:
        cluster: The fake API server.
        folder: Where the homes and logs of the pods are.
        environment: Further variables of each pod.
        secrets: Values of Kubernetes secrets by ``name/key``.
        command: What runs in place of the TrainJob's command.
    """

    def __init__(
        self,
        cluster: FakeKubernetes,
        folder: Path,
        *,
        environment: Mapping[str, str],
        secrets: Mapping[str, str],
        command: list[str] | None = None,
    ) -> None:
        self.cluster, self.folder = cluster, folder
        self.environment, self.secrets, self.command = environment, secrets, command
        self.running: dict[str, list[subprocess.Popen[bytes]]] = {}
        self.threads: list[threading.Thread] = []
        cluster.started, cluster.stopped = self.start, self.stop

    def start(self, job: dict[str, Any]) -> None:
        name, trainer = job["metadata"]["name"], job["spec"]["trainer"]
        ports = free_ports(trainer["numNodes"])
        addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
        attempt = f"{name}-{job['metadata']['uid']}"
        processes = []
        for index in range(len(ports)):
            home = self.folder / attempt / str(index)
            home.mkdir(parents=True)
            variables = {**self.variables(job, index), "QATLINE_WORKER_ADDRESSES": addresses}
            places = {"HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": str(ROOT)}
            path = f"{Path(sys.executable).parent}:{os.defpath}"
            with (home / "log").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        self.command or trainer["command"],
                        env={**variables, **self.environment, **places, "PATH": path},
                        cwd=home,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
            self.cluster.add_pod(name, index, {"running": {}})
        self.running[name] = processes
        self.cluster.count(name, active=1)
        thread = threading.Thread(
            target=self._watch, args=(name, self.folder / attempt, processes), daemon=True
        )
        self.threads.append(thread)
        thread.start()

    def variables(self, job: dict[str, Any], index: int) -> dict[str, str]:
        """The variables of a pod: the runtime's, the TrainJob's, Kubernetes's own."""
        labels = {
            "jobset.sigs.k8s.io/jobset-name": job["metadata"]["name"],
            "jobset.sigs.k8s.io/replicatedjob-name": "node",
            "jobset.sigs.k8s.io/job-index": "0",
        }
        runtime = manifests()["ClusterTrainingRuntime"]["spec"]["template"]["spec"]
        pod = runtime["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        found = {"JOB_COMPLETION_INDEX": str(index)}
        for each in (*pod["containers"][0]["env"], *job["spec"]["trainer"]["env"]):
            source = each.get("valueFrom", {})
            if "fieldRef" in source:
                found[each["name"]] = labels[source["fieldRef"]["fieldPath"].split("'")[1]]
            elif "secretKeyRef" in source:
                reference = source["secretKeyRef"]
                found[each["name"]] = self.secrets[f"{reference['name']}/{reference['key']}"]
            else:
                found[each["name"]] = each["value"].replace("$$", "$")
        return found

    def stop(self, name: str) -> None:
        for process in self.running.pop(name, ()):
            if process.poll() is None:
                process.kill()
            process.wait(timeout=30)

    def close(self) -> None:
        for name in list(self.running):
            self.stop(name)
        for thread in self.threads:
            thread.join(timeout=30)

    def alive(self) -> Iterator[subprocess.Popen[bytes]]:
        for processes in self.running.values():
            yield from (each for each in processes if each.poll() is None)

    def _watch(self, name: str, folder: Path, processes: list[subprocess.Popen[bytes]]) -> None:
        codes: dict[int, int] = {}
        while len(codes) < len(processes):
            for index, process in enumerate(processes):
                code = process.poll()
                if code is None or index in codes:
                    continue
                if self.running.get(name) is not processes:
                    return
                codes[index] = code
                self._ended(name, index, code, folder)
                if code:
                    self._end_all(name, folder, processes, codes)
                    return
            time.sleep(0.05)
        self.cluster.count(name, succeeded=1)
        self.cluster.end(name, "Complete")

    def _end_all(
        self,
        name: str,
        folder: Path,
        processes: list[subprocess.Popen[bytes]],
        codes: Mapping[int, int],
    ) -> None:
        """End the other pods, as a Job without further attempts does; then fail."""
        for index, process in enumerate(processes):
            if index not in codes:
                process.kill()
                self._ended(name, index, process.wait(timeout=30), folder)
        self.cluster.count(name, failed=1)
        self.cluster.end(name, "Failed", f"pod {list(codes)[-1]} failed")

    def _ended(self, name: str, index: int, code: int, folder: Path) -> None:
        at = f"2026-11-22T20:00:{time.monotonic() % 60:09.6f}Z"
        exit_code = code if code >= 0 else 128 - code
        pod = self.cluster.add_pod(
            name, index, {"terminated": {"exitCode": exit_code, "finishedAt": at}}
        )
        self.cluster.logs[pod] = (folder / str(index) / "log").read_text()
