"""``qatline serve`` under load, against its own engine without a server.

    python benchmarks/serving.py [--network small] [--clients 8] [--seconds 60] [--json FILE]

Clients send raw images (uint8, binary tensors over HTTP, one connection each), one request after the
other, from a process of their own on the same machine. They send prepared bytes and read status and
length of an answer only, since they share the CPUs with server and engine. Turns with the server
alternate with turns of as many threads that give prepared arrays to the engine itself. Printed are
requests per second, their ratio, percentiles of the answers' times, the server's memory after the
first turn and the last, and what became of the requests that ran when the server was told to stop.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import multiprocessing
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import record
from engine_threads import NETWORKS as THREADED
from engine_threads import serve
from reference_networks import ResidualNetwork, write_network

from qat_lib.engines import BuildSpec, build_engine, load_engine
from qatline.components.serving.assemble import PackageOptions, assemble_package
from qatline.components.serving.sources import file_source

NETWORKS = {
    **THREADED,
    "medium": ResidualNetwork(
        blocks=(2, 2, 2, 2), widths=(32, 64, 128, 256), image=(3, 112, 112), classes=1000, stem=32
    ),
    "resnet18": ResidualNetwork(
        blocks=(2, 2, 2, 2), widths=(64, 128, 256, 512), image=(3, 224, 224), classes=1000, stem=64
    ),
}
TURNS = 4


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=tuple(NETWORKS), default="small")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds with the server")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.network, options.clients, options.seconds)
    for name, value in found.items():
        print(f"{name:40} {value}")
    if options.json:
        known = json.loads(options.json.read_text()) if options.json.is_file() else {}
        record.write(
            options.json, {"networks": {**known.get("networks", {}), options.network: found}}
        )


def measure(folder: Path, network: str, clients: int, seconds: float) -> dict[str, Any]:
    """Return the figures of one network."""
    package = _package(folder, network)
    turns = []
    with load_engine(package.path / package.file) as engine, _Server(package.path) as server:
        request = _request(package.model.inputs[0]["shape"][1:])
        serve(engine, clients, 1.0)
        _load(server.port, request, clients, 2.0)
        memory = [server.memory()]
        for _ in range(TURNS):
            bare = serve(engine, clients, seconds / TURNS)
            times, lost = _load(server.port, request, clients, seconds / TURNS)
            turns.append((bare.throughput, times, lost))
            memory.append(server.memory())
        rates = [len(times) / (seconds / TURNS) for _, times, _ in turns]
        every = sorted(time for _, times, _ in turns for time in times)
        stopped = _stop(server, request, clients)
    return {
        "clients": clients,
        "engine_requests_per_second": round(statistics.mean(bare for bare, _, _ in turns), 1),
        "server_requests_per_second": round(statistics.mean(rates), 1),
        "ratio": round(
            statistics.median(rate / bare for rate, (bare, _, _) in zip(rates, turns, strict=True)),
            3,
        ),
        "ms_p50": round(1e3 * every[len(every) // 2], 2),
        "ms_p99": round(1e3 * every[int(len(every) * 0.99)], 2),
        "requests_without_answer": sum(lost for _, _, lost in turns),
        "server_mib": [round(each, 1) for each in memory],
        **stopped,
    }


def _package(folder: Path, network: str) -> Any:
    """Package the network with a preprocessing of uint8 images and a decoding."""
    graph = write_network(folder / "network.onnx", NETWORKS[network])
    model = onnx.load(str(graph))
    _, channels, *size = (dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim)
    classes = [
        str(index) for index in range(model.graph.output[0].type.tensor_type.shape.dim[1].dim_value)
    ]
    facts = {
        "layout": {model.graph.input[0].name: "NCHW"},
        "preprocessing": {"image_shape": [*size, channels], "mean": [0.5], "std": [0.25]},
        "classes": classes,
        "decoding": {"kind": "classification", "classes": classes, "probabilities": False},
    }
    for name, value in facts.items():
        model.metadata_props.add(key=f"qatline.{name}", value=json.dumps(value))
    onnx.save(model, str(graph))
    artifact = build_engine(graph, BuildSpec(max_batch_size=16))
    return assemble_package(file_source(artifact.path), folder / "package", PackageOptions())


def _request(shape: list[int]) -> bytes:
    """Return an HTTP request with a random image."""
    channels, *size = shape
    image = np.random.default_rng(0).integers(0, 256, (1, *size, channels)).astype(np.uint8)
    tensor = {
        "name": "input",
        "shape": list(image.shape),
        "datatype": "UINT8",
        "parameters": {"binary_data_size": image.nbytes},
    }
    output = {"name": "answer", "parameters": {"binary_data": True}}
    head = json.dumps({"inputs": [tensor], "outputs": [output]}).encode()
    body = head + image.tobytes()
    lines = [
        "POST /v2/models/network/infer HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/octet-stream",
        f"Inference-Header-Content-Length: {len(head)}",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


class _Server:
    """The server as a process."""

    def __init__(self, package: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [sys.executable, "-m", "qatline.pipelines.cli.main", "serve", str(package)]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port), "--grpc-port", "0"], stdout=subprocess.DEVNULL
        )

    def __enter__(self) -> _Server:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            try:
                connection.request("GET", "/v2/health/ready")
                if connection.getresponse().status == 200:
                    return self
            except OSError:
                time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def memory(self) -> float:
        """Return the resident memory in MiB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) / 1024


def _load(port: int, request: bytes, clients: int, seconds: float) -> tuple[list[float], int]:
    """Return the seconds of each answer, and the number of requests without one."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    sender = context.Process(target=_send_all, args=(queue, port, request, clients, seconds))
    sender.start()
    found: tuple[list[float], int] = queue.get()
    sender.join()
    return found


def _send_all(queue: Any, port: int, request: bytes, clients: int, seconds: float) -> None:
    times, lost = [list[float]() for _ in range(clients)], [0] * clients

    def send(index: int) -> None:
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            try:
                connection.sendall(request)
                head = _read_answer(connection)
            except OSError:
                lost[index] += 1
                return
            if head.split(b" ")[1] != b"200":
                lost[index] += 1
                continue
            times[index].append(time.perf_counter() - start)
            if b"connection: close" in head:
                return

    threads = [threading.Thread(target=send, args=(index,)) for index in range(clients)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    queue.put(([time for own in times for time in own], sum(lost)))


def _read_answer(connection: socket.socket) -> bytes:
    """Read an answer; return its status line and headers in lower case."""
    data, total = b"", math.inf
    while len(data) < total:
        if not (part := connection.recv(1 << 16)):
            raise ConnectionError("the server closed the connection")
        data += part
        if math.isinf(total) and (end := data.find(b"\r\n\r\n")) >= 0:
            head = data[:end].lower()
            total = end + 4 + int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
    return head


def _stop(server: _Server, request: bytes, clients: int) -> dict[str, Any]:
    """Stop the server while clients send requests."""
    timer = threading.Timer(4.0, server.process.send_signal, [signal.SIGTERM])
    timer.start()
    times, lost = _load(server.port, request, clients, 8.0)
    server.process.wait(60)
    return {"answers_before_stop": len(times), "lost_at_stop": lost}


if __name__ == "__main__":
    main()
