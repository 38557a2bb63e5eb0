"""A worker whose step trains nothing: it meets the other workers at their addresses.

Each listens at its own address; worker 0 asks each of the others for its index, and its output
holds the answers, and the checkpoint that worker 0 found. ``STAND_IN`` says who misbehaves:
``fail:<index>`` or ``hang``; worker 0 fails after it wrote a checkpoint.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qat_lib.errors import DataError
from qatline.components.runtime import train_job_worker as worker
from qatline.components.store.directories import describe, publish

PATIENCE = 60.0


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def ask(text: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with socket.create_connection(address_of(text), timeout=PATIENCE) as connection:
                return connection.recv(100).decode()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def meet(workers: list[str], index: int) -> list[str]:
    """Return what the other workers say to worker 0; nothing for the others."""
    if index == 0:
        return [ask(each) for each in workers[1:]]
    with socket.create_server(address_of(workers[index])) as server:
        server.settimeout(PATIENCE)
        connection, _ = server.accept()
        with connection:
            connection.sendall(f"worker {index}".encode())
    return []


def run_component(
    step: str, *, settings: Mapping[str, Any], seed: int, inputs: Mapping[str, str], output: str
) -> None:
    config = json.loads(os.environ["TF_CONFIG"])
    index = config["task"]["index"]
    misbehaving = os.environ.get("STAND_IN", "")
    checkpoint = Path(os.environ.get("QATLINE_CHECKPOINTS", output)) / step / "baseline.state"
    found = checkpoint.read_text() if index == 0 and checkpoint.exists() else ""
    if index == 0:
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_text("epoch 1")
    if misbehaving == f"fail:{index}":
        raise DataError(f"worker {index} can't read its part")
    if misbehaving == "hang":
        time.sleep(PATIENCE)
    told = meet(config["cluster"]["worker"], index)
    if index == 0:
        work = Path(output).with_name("work")
        work.mkdir()
        data = (Path(inputs["dataset"]) / "data").read_text()
        result = {"told": told, "data": data, "seed": seed, "settings": dict(settings)}
        result["checkpoint"] = found
        (work / "result.json").write_text(json.dumps(result))
        publish(work, Path(output), describe(work, step=step, metrics={"workers": len(told) + 1}))


if __name__ == "__main__":
    worker.run_component = run_component  # type: ignore[assignment]
    sys.exit(worker.run_pod())
