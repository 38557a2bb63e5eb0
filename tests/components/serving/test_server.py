"""``qatline serve`` as a process: KServe's own client, plain HTTP, and the end of the process."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served_classifier import write_graph

from qatline.components.client import Client, ServerError
from qatline.components.serving.assemble import PackageOptions, assemble_package
from qatline.components.serving.sources import ModelSource, file_source


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


class Server:
    """A running server; ``output`` has what it prints."""

    def __init__(self, *arguments: str, log: Path) -> None:
        self.port, self.grpc_port = free_ports(2)
        self.url, self._log = f"http://127.0.0.1:{self.port}", log
        command = [
            *(sys.executable, "-m", "qatline.pipelines.cli.main", "serve", *arguments),
            *("--port", str(self.port), "--grpc-port", str(self.grpc_port)),
        ]
        with log.open("w") as stream:
            self.process = subprocess.Popen(command, stdout=stream, stderr=stream)

    @property
    def output(self) -> str:
        return self._log.read_text()

    def wait(self, seconds: float = 120) -> Server:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/v2/health/ready", timeout=5) as answer:
                    if json.load(answer)["ready"]:
                        return self
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        pytest.fail(f"no server: {self.output[-2000:]}")

    def post(self, body: Any, model: str = "digits") -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        url = f"{self.url}/v2/models/{model}/infer"
        try:
            request = urllib.request.Request(url, data=data, headers=headers)
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def serving(*arguments: str, log: Path) -> Iterator[Server]:
    server = Server(*arguments, log=log)
    try:
        yield server.wait()
    finally:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="module")
def package(source: ModelSource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "package"
    return assemble_package(source, folder, PackageOptions(name="digits")).path


@pytest.fixture(scope="module")
def server(package: Path) -> Iterator[Server]:
    with serving(str(package), log=package.with_name("log")) as found:
        yield found


def request(x: np.ndarray, **values: Any) -> dict[str, Any]:
    tensor = {
        "name": "input",
        "shape": list(x.shape),
        "datatype": "UINT8",
        "data": x.ravel().tolist(),
    }
    return {"inputs": [{**tensor, **values}]}


def test_json_request_gets_outputs_and_answer(
    server: Server, samples: np.ndarray, logits: np.ndarray
) -> None:
    status, found = server.post(request(samples[:3]))
    assert status == 200
    outputs = {each["name"]: each for each in found["outputs"]}
    np.testing.assert_allclose(
        np.array(outputs["logits"]["data"]).reshape(3, 10), logits[:3], rtol=1e-5
    )
    answer = json.loads(outputs["answer"]["data"][0])
    assert 0.1 < answer["probability"] <= 1
    assert outputs["answer"]["datatype"] == "BYTES"


def test_client_gives_the_engine_s_outputs(
    server: Server, package: Path, samples: np.ndarray, logits: np.ndarray
) -> None:
    client = Client(server.url, package)
    np.testing.assert_array_equal(client.infer(samples)["logits"], logits)
    classes = client.facts["classes"]
    found = [each["class"] for each in client.predict(samples)]
    assert found == [classes[index] for index in logits.argmax(axis=1)]


def test_client_reads_image_files(
    server: Server, package: Path, samples: np.ndarray, tmp_path: Path
) -> None:
    from PIL import Image

    Image.fromarray(samples[0, :, :, 0]).save(tmp_path / "a.png")
    client = Client(server.url, package)
    assert client.predict_files([tmp_path / "a.png"]) == client.predict(samples[:1])
    Image.fromarray(samples[0, :4, :, 0]).save(tmp_path / "b.png")
    with pytest.raises(ValueError, match="expected an image of 8 x 8 pixels"):
        client.predict_files([tmp_path / "b.png"])


def test_kserve_s_clients_are_answered(
    server: Server, samples: np.ndarray, logits: np.ndarray
) -> None:
    from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
    from kserve.inference_client import RESTConfig

    tensor = InferInput(name="input", shape=list(samples.shape), datatype="UINT8")
    tensor.set_data_from_numpy(samples, binary_data=True)
    sent = InferRequest(model_name="digits", infer_inputs=[tensor])

    async def ask() -> list[Any]:
        rest = InferenceRESTClient(RESTConfig(protocol="v2"))
        grpc = InferenceGRPCClient(url=f"127.0.0.1:{server.grpc_port}")
        found = [await rest.infer(server.url, sent, model_name="digits"), await grpc.infer(sent)]
        await rest.close()
        await grpc.close()
        return found

    for response in asyncio.run(ask()):
        outputs = {each.name: each for each in response.outputs}
        np.testing.assert_allclose(outputs["logits"].as_numpy(), logits, rtol=1e-5)
        assert outputs["answer"].as_numpy().shape == (len(samples),)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "other"}, "expected the inputs input, received other"),
        ({"datatype": "FP32"}, "expected input as UINT8 of shape .samples, 8, 8, 1.*FP32"),
        ({"shape": [1, 8, 8]}, "expected input as UINT8 of shape"),
        ({"shape": [0, 8, 8, 1], "data": []}, "expected input as UINT8 of shape"),
        ({"data": [1, 2]}, "the data does not fit"),
        ({"data": [300] * 64}, "the data does not fit"),
        ({"data": ["x"] * 64}, "the data does not fit"),
    ],
)
def test_wrong_requests_get_one_clear_error(
    server: Server, samples: np.ndarray, values: dict[str, Any], message: str
) -> None:
    import re

    status, found = server.post(request(samples[:1], **values))
    assert status == 400
    assert re.search(message, found["error"]), found


def test_other_wrong_requests_are_refused(server: Server, samples: np.ndarray) -> None:
    assert server.post(b"{")[0] == 422
    assert server.post(request(samples[:1]), model="unknown")[0] == 404
    unknown = {**request(samples[:1]), "outputs": [{"name": "poem"}]}
    status, found = server.post(unknown)
    assert (status, "expected outputs among logits, answer" in found["error"]) == (400, True)


def test_metrics_count_requests_and_batches(server: Server, samples: np.ndarray) -> None:
    server.post(request(samples[:2]))
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values['request_predict_seconds_count{model_name="digits"}']) >= 1
    assert float(values['qatline_batch_samples_sum{model="digits"}']) >= 2


@pytest.mark.matrix
def test_running_requests_are_answered_after_a_signal(
    package: Path, samples: np.ndarray, logits: np.ndarray, tmp_path: Path
) -> None:
    """Some of them still wait for the others."""
    many, repeats = 4, 1_000
    with serving(str(package), log=tmp_path / "log") as server:
        client = Client(server.url, package)
        with ThreadPoolExecutor(many) as pool:
            x = np.tile(samples, (repeats, 1, 1, 1))
            sent = [pool.submit(client.infer, x) for _ in range(many)]
            wait_for_requests(server, many)
            began = time.monotonic()
            code = server.stop()
            stopped_after = time.monotonic() - began
            answers = [each.result()["logits"] for each in sent]
    assert code in (0, -signal.SIGTERM)
    assert stopped_after > 0.1  # it was busy
    for found in answers:
        np.testing.assert_array_equal(found[-len(samples) :], logits)
        assert len(found) == repeats * len(samples)


def wait_for_requests(server: Server, count: int) -> None:
    """Wait until the server has read so many requests that have no answer yet."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        started = text.partition('request_preprocess_seconds_count{model_name="digits"} ')[2]
        if started and float(started.split()[0]) >= count:
            return
        time.sleep(0.01)
    pytest.fail(f"the server read no {count} requests")


def test_port_in_use_is_one_sentence(server: Server, package: Path, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "qatline.pipelines.cli.main", "serve", str(package)),
                *("--port", str(server.port), "--grpc-port", "0"),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    assert done.returncode == 2
    assert f"Port {server.port} can't be used" in (tmp_path / "log").read_text()


@pytest.mark.matrix
def test_client_names_a_server_that_is_away(package: Path) -> None:
    (port,) = free_ports(1)
    client = Client(f"http://127.0.0.1:{port}", package)
    with pytest.raises(ServerError, match="can't be reached"):
        client.predict(np.zeros((1, 8, 8, 1), np.uint8))


@pytest.mark.matrix
def test_model_without_a_decoding_returns_its_outputs(
    samples: np.ndarray, logits: np.ndarray, tmp_path: Path
) -> None:
    graph = file_source(write_graph(tmp_path / "digits.onnx", decoding=False))
    package = assemble_package(graph, tmp_path / "package", PackageOptions()).path
    with serving(str(package), log=tmp_path / "log") as server:
        found = Client(server.url, package).predict(samples)
        np.testing.assert_allclose([each["logits"] for each in found], logits, rtol=1e-4)
        assert "answer" not in str(server.post(request(samples[:1])))


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow")
def test_published_package_is_served_from_s3(
    s3: Any, package: Path, samples: np.ndarray, logits: np.ndarray, tmp_path: Path
) -> None:
    from qatline.components.storage.published import publish_folder

    publish_folder(package, "s3://data/models/digits")
    with serving("s3://data/models/digits", log=tmp_path / "log") as server:
        np.testing.assert_array_equal(Client(server.url, package).infer(samples)["logits"], logits)
    s3.put_object(Bucket="data", Key="models/digits/MODEL_CARD.md", Body=b"changed")
    server = Server("s3://data/models/digits", log=tmp_path / "log")
    assert server.process.wait(60) == 1
    assert "MODEL_CARD.md differs from its SHA-256" in " ".join(server.output.split())
