"""Packages in a real Triton server, which comes with the package nvidia-pytriton.

``QATLINE_TRITON`` is the Python of an environment with nvidia-pytriton, onnxruntime and NumPy 1:
pytriton's Python backend is compiled for NumPy 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_server import free_ports

from qatline.components.client import Client, ServerError
from qatline.components.serving.assemble import PackageOptions, assemble_package
from qatline.components.serving.sources import ModelSource

PYTHON = os.environ.get("QATLINE_TRITON", "")
pytestmark = [
    pytest.mark.matrix,
    pytest.mark.skipif(not PYTHON, reason="QATLINE_TRITON names no Python with nvidia-pytriton"),
]


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, str]]:
    """The server, its backends, and the environment that it needs."""
    script = """
import sys, sysconfig
print(sysconfig.get_path("purelib"), sysconfig.get_config_var("LIBDIR"), *sys.version_info[:2])
"""
    done = subprocess.run([PYTHON, "-c", script], capture_output=True, text=True, check=True)
    site, libraries, *version = done.stdout.split()
    served = Path(site) / "pytriton" / "tritonserver"
    folder = tmp_path_factory.mktemp("backends")
    shutil.copytree(served / "backends" / "python", folder / "python")
    stub = served / "python_backend_stubs" / ".".join(version) / "triton_python_backend_stub"
    shutil.copy(stub, folder / "python")
    for path in (folder / "python" / stub.name, served / "bin" / "tritonserver"):
        path.chmod(0o755)
    paths = [str(Path(site) / "nvidia_pytriton.libs"), libraries]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(paths),
        "PATH": os.pathsep.join([str(Path(PYTHON).parent), os.environ["PATH"]]),
        "PYTHONPATH": site,
    }
    return served / "bin" / "tritonserver", folder, environment


@contextmanager
def triton(backends: Any, repository: Path, *arguments: str) -> Iterator[tuple[str, Path]]:
    """Yield the address and the log of a server that loaded what it can."""
    server, folder, environment = backends
    http, grpc, metrics = free_ports(3)
    log = repository.with_name("triton.log")
    with log.open("w") as stream:
        process = subprocess.Popen(
            [
                *(server, f"--model-repository={repository}", f"--backend-directory={folder}"),
                *(f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"),
                *("--exit-on-error=false", *arguments),
            ],
            env=environment,
            stdout=stream,
            stderr=stream,
        )
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end and process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/health/live", timeout=5).close()
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
        else:
            pytest.fail(f"no server: {log.read_text()[-2000:]}")
        yield f"http://127.0.0.1:{http}", log
    finally:
        process.terminate()
        process.wait(60)


def test_triton_gives_the_outputs_and_answers(
    backends: Any, source: ModelSource, samples: np.ndarray, logits: np.ndarray, tmp_path: Path
) -> None:
    options = PackageOptions(target="triton", backend="python", raw=True, name="digits")
    package = assemble_package(source, tmp_path / "package", options)
    with triton(backends, package.path / "models") as (url, _):
        client = Client(url, package.path)
        found = client.infer(samples)["logits"]
        np.testing.assert_allclose(found, logits, atol=0.02 * np.abs(logits).max())
        classes = [client.facts["classes"][index] for index in found.argmax(axis=1)]
        assert [each["class"] for each in client.predict(samples)] == classes
        # Without the ensemble, the client prepares and decodes.
        plain = Client(url, package.path, model="digits")
        assert [each["class"] for each in plain.predict(samples)] == classes
        with pytest.raises(ServerError, match="400"):
            client.predict(samples[:, :7])
        check_with_tritonclient(url, samples, found)


def check_with_tritonclient(url: str, samples: np.ndarray, expected: np.ndarray) -> None:
    """Ask in a process of its own: Protobuf knows KServe's names once in a process."""
    script = """
import sys
import numpy as np
from tritonclient import http
held = np.load(sys.argv[2])
client = http.InferenceServerClient(sys.argv[1].removeprefix("http://"))
x = http.InferInput("input", held["samples"].shape, "UINT8")
x.set_data_from_numpy(held["samples"])
answers = client.infer("digits_raw", [x]).as_numpy("answer")
assert answers.shape == (len(held["samples"]), 1), answers.shape
config = client.get_model_config("digits")
assert config["output"][0]["label_filename"] == "labels.txt", config
"""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.npz"
        np.savez(file, samples=samples, expected=expected)
        done = subprocess.run(
            [sys.executable, "-c", script, url, str(file)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "tensorrt"])
def test_configurations_of_missing_backends_are_valid(
    backends: Any, source: ModelSource, tmp_path: Path, backend: Any
) -> None:
    """The server reads and checks the configuration before it looks for the backend."""
    from dataclasses import replace

    if backend == "tensorrt":
        assert source.manifest is not None
        manifest = replace(source.manifest, backend="tensorrt", backend_version="10.3.0.26")
        source = replace(source, manifest=manifest)
    package = assemble_package(
        source,
        tmp_path / "package",
        PackageOptions(target="triton", backend=backend, name="digits"),
    )
    with triton(backends, package.path / "models") as (_, log):
        text = log.read_text()
        assert f"unable to find backend library for backend '{backend}'" in text, text[-2000:]
        broken = package.path / "models" / "digits" / "config.pbtxt"
        broken.write_text(broken.read_text().replace("TYPE_FP32", "TYPE_OTHER"))
    with triton(backends, package.path / "models") as (_, log):
        assert "unable to find backend library" not in log.read_text()
