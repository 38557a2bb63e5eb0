"""``qatline package``, ``serve`` and ``publish`` on the command line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from served_classifier import write_graph
from test_server import Server, serving
from typer.testing import CliRunner

from qat_lib.errors import EngineBuildError
from qat_lib.preprocessing import Preprocessing
from qatline.components.client import Client
from qatline.components.registry.mlflow_registry import MlflowRegistry
from qatline.components.registry.package import write_package
from qatline.components.registry.registry import DIGEST
from qatline.components.serving.service import Service
from qatline.components.store.fingerprints import file_digest
from qatline.components.tracking.store import ensure_store
from qatline.pipelines.cli.main import app
from qatline.pipelines.cli.serving import ChampionFollower
from qatline.pipelines.config.run_config import build_config

pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred"),
]

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


def invoke(*arguments: str, code: int = 0) -> str:
    done = runner.invoke(app, list(arguments))
    assert done.exit_code == code, (done.stdout, done.stderr)
    return done.stdout if code == 0 else " ".join(done.stderr.split())


def test_package_says_how_to_start_the_server(tmp_path: Path) -> None:
    graph = str(write_graph(tmp_path / "digits.onnx"))
    out = str(tmp_path / "plain")
    assert f"qatline serve {out}" in invoke("package", graph, "-o", out)
    shown = invoke("package", graph, "-o", str(tmp_path / "triton"), "--target", "triton")
    assert "tritonserver --model-repository=/models" in shown
    shown = invoke("package", graph, "-o", str(tmp_path / "ovms"), "--target", "ovms")
    assert "--config_path /models/config.json" in shown
    arguments = ("--target", "kserve", "--storage-uri", "s3://b/d")
    shown = invoke("package", graph, "-o", str(tmp_path / "kserve"), *arguments)
    assert f"kubectl apply -f kserve.yaml, with the file in {tmp_path / 'kserve'}" in shown
    assert "docker" not in shown


def test_package_in_json(tmp_path: Path) -> None:
    graph = str(write_graph(tmp_path / "digits.onnx", decoding=False))
    found = json.loads(invoke("package", graph, "-o", str(tmp_path / "p"), "--json"))
    assert (found["target"], found["model"]) == ("plain", "digits")
    assert "models/digits/1/model.onnx" in found["files"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["package", "x.engine", "--champion", "y"], 2, "Received: both"),
        (["package", "none"], 2, "Expected a run of"),
        (["package", "--target", "vllm"], 2, "vllm"),
        (["serve", "."], 1, "Expected the folder of a package with package.json"),
        (["publish", "none", "to"], 1, "Expected a folder with files to publish"),
    ],
)
def test_wrong_arguments_get_one_error(
    arguments: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in invoke(*arguments, code=code)
    assert list(tmp_path.iterdir()) == []


def test_publish_counts_the_files(tmp_path: Path) -> None:
    graph = str(write_graph(tmp_path / "digits.onnx"))
    package, place = str(tmp_path / "p"), str(tmp_path / "store")
    invoke("package", graph, "-o", package)
    assert "Published 7 files" in invoke("publish", package, place)


def register(registry: MlflowRegistry, folder: Path, seed: int) -> None:
    """Make a graph the champion."""
    graph = write_graph(folder / f"{seed}.onnx", seed=seed)
    model = folder / "model.keras"
    model.write_bytes(b"float")
    package = folder / f"package-{seed}"
    write_package(
        package,
        graph=graph,
        preprocessing=Preprocessing(image_shape=(8, 8, 1)),
        classes=("a",),
        baseline=[model],
        card=f"# Card {seed}\n",
    )
    source = registry.upload(registry.new_place(), package)
    number = registry.create_version(source, {DIGEST: file_digest(graph)}, "text")
    registry.set_alias("champion", number)


@pytest.fixture
def registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_store: Callable[[Path], str]
) -> MlflowRegistry:
    from mlflow import MlflowClient

    uri = new_store(tmp_path)
    experiment = ensure_store(uri, "qatline", (tmp_path / "artifacts").as_uri())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", experiment)
    made = MlflowRegistry(MlflowClient(uri), "digits", experiment_id=experiment)
    made.ensure()
    register(made, tmp_path, 1)
    return made


def test_champion_is_packaged_with_its_card(registry: MlflowRegistry, tmp_path: Path) -> None:
    folder = tmp_path / "p"
    invoke("package", "--champion", "digits", "-o", str(folder))
    assert (folder / "MODEL_CARD.md").read_text() == "# Card 1\n"
    origin = json.loads((folder / "package.json").read_text())["origin"]
    assert (origin["model"], origin["version"]) == ("digits", 1)
    assert (folder / "models" / "digits" / "1" / "model.onnx").read_bytes() == (
        tmp_path / "1.onnx"
    ).read_bytes()


def test_champion_is_tried_again_after_a_failure(
    registry: MlflowRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = ChampionFollower(build_config({}, source="test"), "digits")
    with monkeypatch.context() as patched:
        patched.setattr(Service, "open", Mock(side_effect=EngineBuildError("no memory")))
        with pytest.raises(EngineBuildError, match="no memory"):
            follower.look()
    found = follower.look()
    assert found is not None
    assert follower.look() is None
    found.engine.close()


@pytest.mark.matrix
def test_new_champion_is_served_without_a_restart(registry: MlflowRegistry, tmp_path: Path) -> None:
    invoke("package", "--champion", "digits", "-o", str(tmp_path / "p"))
    x = np.random.default_rng(0).integers(0, 17, (4, 8, 8, 1)).astype(np.uint8)
    arguments = ("--champion", "digits", "--reload-seconds", "0.5")
    with serving(*arguments, log=tmp_path / "log") as server:
        client = Client(server.url, tmp_path / "p")
        before = client.infer(x)["logits"]
        register(registry, tmp_path, 2)
        reloaded = wait_for_change(server, client, x, before)
        assert not np.allclose(reloaded, before)
        # A registry that is away leaves the engine in service.
        (tmp_path / "mlflow.db").rename(tmp_path / "away.db")
        time.sleep(2)
        np.testing.assert_array_equal(client.infer(x)["logits"], reloaded)


def wait_for_change(
    server: Server, client: Client, x: np.ndarray, before: np.ndarray
) -> np.ndarray:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = client.infer(x)["logits"]
        if not np.array_equal(found, before):
            return found
        time.sleep(0.2)
    pytest.fail(f"the same champion is served: {server.output[-2000:]}")
