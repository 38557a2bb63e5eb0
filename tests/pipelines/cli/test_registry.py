"""Champions moved by hand, on a real registry."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from qatline.components.registry.journal import Move, carry_out
from qatline.components.registry.mlflow_registry import MlflowRegistry
from qatline.components.tracking.store import ensure_store
from qatline.pipelines.cli.main import app

# SQLAlchemy 2.1 about a loader that MLflow 3.17 uses, and MLflow about its own type hints.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred"),
]

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


@pytest.fixture(scope="module")
def store(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[Path], str]
) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("mlflow")
    uri = new_store(folder)
    return uri, ensure_store(uri, "qatline", (folder / "artifacts").as_uri())


@pytest.fixture
def registry(
    store: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> MlflowRegistry:
    """A model with a champion, a version that was rejected, and one at chance."""
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", store[0])
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", store[1])
    name = request.node.name[:60].replace("[", "-").replace("]", "")
    made = MlflowRegistry(MlflowClient(store[0]), name, experiment_id=store[1])
    made.ensure()
    (tmp_path / "model.onnx").write_bytes(b"graph")
    rows = [
        ("promoted", "promote", "true", "0.91"),
        ("rejected", "reject", "true", "0.88"),
        ("rejected", "reject", "false", "0.1"),
    ]
    for number, (state, verdict, better, accuracy) in enumerate(rows, start=1):
        tags = {
            "qatline.state": state,
            "qatline.verdict": verdict,
            "qatline.failed": "" if verdict == "promote" else "champion_gain",
            "qatline.better_than_chance": better,
            "qatline.quality": accuracy,
            "qatline.latency_ms": "0.512",
            "qatline.target": "openvino",
            "qatline.data": "abcdef0123456789",
            "qatline.run": f"20261122-12000{number}-ab12",
        }
        source = made.upload(made.new_place(), tmp_path)
        assert made.create_version(source, tags, "a description") == number
    move = Move(number=1, action="promotion", to=1, by="run 1", at="2026-11-22T12:00:00+00:00")
    carry_out(made, move, lambda: None)
    return made


def call(registry: MlflowRegistry, *arguments: str) -> Any:
    return runner.invoke(app, [*arguments, "--name", registry.name])


def test_registry_shows_versions_and_moves(registry: MlflowRegistry) -> None:
    shown = call(registry, "registry")
    assert shown.exit_code == 0, shown.stderr
    assert max(len(line) for line in shown.stdout.splitlines()) <= 80
    assert "champion" in shown.stdout
    assert "91.00%" in shown.stdout
    assert "Version 2 failed: champion_gain." in shown.stdout
    assert "2026-11-22T12:00  promotion: none -> version 1" in shown.stdout
    content = json.loads(call(registry, "registry", "--json").stdout)
    assert content["aliases"] == {"champion": 1}
    assert content["versions"][1]["state"] == "rejected"
    assert content["versions"][0]["latency_ms"] == 0.512
    assert content["moves"][0]["by"] == "run 1"


def test_promote_and_rollback_move_the_champion(registry: MlflowRegistry) -> None:
    refused = call(registry, "promote", "20261122-120002-ab12")
    assert refused.exit_code == 2
    assert "--accept-rejected" in refused.stderr
    done = call(registry, "promote", "20261122-120002-ab12", "--accept-rejected")
    assert done.exit_code == 0, done.stderr
    assert "version 2 is the champion instead of version 1" in done.stdout
    again = call(registry, "promote", "2", "--accept-rejected")
    assert "is the champion already" in again.stdout
    back = call(registry, "rollback", "--reason", "slow in line 3")
    assert "version 1 is the champion again, instead of version 2" in back.stdout
    shown = call(registry, "registry").stdout
    assert "rollback: version 2 -> version 1" in shown
    assert "slow in line 3" in shown
    assert call(registry, "rollback").exit_code == 2


def test_promote_refuses_chance_and_unknown_runs(registry: MlflowRegistry) -> None:
    chance = call(registry, "promote", "3", "--accept-rejected")
    assert chance.exit_code == 2
    assert "not better than chance" in chance.stderr
    unknown = call(registry, "promote", "nobody")
    assert unknown.exit_code == 2
    assert "latest versions: 1, 2, 3" in unknown.stderr
    assert registry.state().aliases == {"champion": 1}


def test_registry_of_no_name_is_refused(store: tuple[str, str]) -> None:
    for command in (["registry"], ["promote", "1"], ["rollback"]):
        done = runner.invoke(app, command)
        assert done.exit_code == 2
        assert "Expected the name of a registered model" in done.stderr


def test_empty_registry_says_so(registry: MlflowRegistry) -> None:
    from mlflow import MlflowClient

    MlflowClient().create_registered_model("nobody")
    done = runner.invoke(app, ["registry", "--name", "nobody"])
    assert done.exit_code == 0
    assert "nobody has no versions." in done.stdout


@pytest.mark.parametrize("name", ["a/b", "x'y", "../x", "", " x", "a\x1bb"])
def test_name_that_no_config_takes_is_refused(name: str) -> None:
    for command in (["registry"], ["promote", "1"], ["rollback"]):
        done = runner.invoke(app, [*command, "--name", name])
        assert done.exit_code == 2
        assert "--name: registry.name: expected" in done.stderr


@pytest.mark.parametrize("command", [["registry"], ["promote", "1"], ["rollback"]])
def test_mistyped_name_gets_the_nearest_one(registry: MlflowRegistry, command: list[str]) -> None:
    before = registry.names()
    done = runner.invoke(app, [*command, "--name", f"{registry.name}x"])
    assert done.exit_code == 2
    assert f"did you mean {registry.name!r}?" in done.stderr
    assert registry.names() == before


def test_alias_without_a_number_is_told(registry: MlflowRegistry, store: tuple[str, str]) -> None:
    with closing(sqlite3.connect(store[0].removeprefix("sqlite:///"))) as connection, connection:
        connection.execute(
            "UPDATE registered_model_aliases SET version = 'first' WHERE name = ?", (registry.name,)
        )
    for command in (["registry"], ["promote", "1"], ["rollback"]):
        done = call(registry, *command)
        assert done.exit_code == 1
        assert "expected the alias 'champion' to name a version's number" in done.stderr
        assert "bug" not in done.stderr


@pytest.mark.parametrize(
    "damage", ["{broken", '{"number": "x", "action": 1, "to": 2, "at": 5}'], ids=["text", "types"]
)
def test_damaged_history_is_left_out(registry: MlflowRegistry, damage: str) -> None:
    registry.set_tag("qatline.history.000001", damage)
    content = json.loads(call(registry, "registry", "--json").stdout)
    assert content["moves"] == []
    done = call(registry, "promote", "2", "--accept-rejected")
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize("reason", ["x" * 6000, "\u00fc" * 6000])
def test_rollback_with_a_long_reason_is_recorded(registry: MlflowRegistry, reason: str) -> None:
    call(registry, "promote", "2", "--accept-rejected")
    assert call(registry, "rollback", "--reason", reason).exit_code == 0
    last = json.loads(call(registry, "registry", "--json").stdout)["moves"][-1]
    assert last["action"] == "rollback"
    assert last["reason"].startswith(reason[0])
    assert last["reason"].endswith("...")


@pytest.mark.parametrize("command", [["registry"], ["promote", "1"], ["rollback"]])
def test_folder_without_a_store_is_told_and_left_alone(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    done = runner.invoke(app, [*command, "--name", "digits"])
    assert done.exit_code == 1
    assert "found none at" in done.stderr
    assert not list(tmp_path.iterdir())
    database = tmp_path / "runs" / "mlflow.db"
    database.parent.mkdir()
    database.touch()
    done = runner.invoke(app, [*command, "--name", "digits"])
    assert done.exit_code == 1
    assert "found none at" in done.stderr
    assert [path.stat().st_size for path in database.parent.iterdir()] == [0]
