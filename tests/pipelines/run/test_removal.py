from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from qat_lib.errors import ConfigError, StorageError, TrackingError
from qatline.components.registry.registry import ModelState, RegisteredVersion
from qatline.components.store.directories import describe, materialize, publish, verify_directory
from qatline.pipelines.cli.main import app
from qatline.pipelines.config.run_config import load_config
from qatline.pipelines.run import removal
from qatline.pipelines.run.folder import RunFolder, create_run
from qatline.pipelines.run.record import Status, now
from qatline.pipelines.run.removal import plan_removal, remove

BYTES = 100_000
DAY = 86400
Make = Callable[..., RunFolder]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that makes a run with a result from the step store."""

    def made(
        created: str, result: str, *, status: Status = "finished", name: str = ""
    ) -> RunFolder:
        overrides = [f"output={tmp_path}"] + ([f"registry.name={name}"] if name else [])
        folder = create_run(
            load_config(overrides=overrides), pipeline="a:b", cache=True, version="1"
        )
        folder.write_record(replace(folder.record(), status=status, created=created))
        entry = stored(tmp_path, result)
        output = folder.attempt_dir(1) / "task" / "train-baseline-component" / "model"
        materialize(entry, output)
        if name:
            (folder.artifacts_dir / "promotion").mkdir(parents=True)
        return folder

    return made


def stored(output: Path, key: str) -> Path:
    entry = output / "store" / "train_baseline" / key
    if not entry.exists():
        work = output / "work"
        work.mkdir(parents=True)
        (work / "model.bin").write_bytes(os.urandom(BYTES))
        publish(work, entry, describe(work, step="train_baseline", key=key))
    return entry


def ids(found: Any) -> list[str]:
    return [run.run_id for run in found.runs]


def test_old_runs_go_with_the_results_that_no_other_run_has(make: Make, tmp_path: Path) -> None:
    old = make("2026-01-01T10:00:00.000+00:00", "own")
    shared = make("2026-01-02T10:00:00.000+00:00", "shared")
    recent = make(now(), "shared")
    stored(tmp_path, "of_no_run")
    found = plan_removal(tmp_path, seconds=30 * DAY)
    assert set(ids(found)) == {old.run_id, shared.run_id}
    assert [path.name for path in found.results] == ["of_no_run", "own"]
    # The shared result has a second name in the recent run.
    assert 2 * BYTES < found.freed < 2 * BYTES + 20_000
    assert old.path.exists()
    remove(found, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if (path / "run.json").exists()] == [
        recent.run_id
    ]
    assert verify_directory(tmp_path / "store" / "train_baseline" / "shared").key == "shared"
    assert not (tmp_path / "store" / "train_baseline" / "own").exists()
    assert not list(tmp_path.rglob("*.removed"))


def test_selection_by_status(make: Make, tmp_path: Path) -> None:
    make("2026-01-01T10:00:00.000+00:00", "a")
    failed = make("2026-01-02T10:00:00.000+00:00", "b", status="failed")
    found = plan_removal(tmp_path, statuses=["failed"])
    assert ids(found) == [failed.run_id]
    assert [path.name for path in found.results] == ["b"]
    assert ids(plan_removal(tmp_path, statuses=["failed"], seconds=1e9)) == []


def test_the_oldest_runs_go_until_the_folder_has_the_size(make: Make, tmp_path: Path) -> None:
    runs = [make(f"2026-01-0{day}T10:00:00.000+00:00", f"key{day}") for day in (1, 2, 3)]
    by_age = sorted(runs, key=lambda run: run.run_id)
    (tmp_path / "mlflow-artifacts").mkdir()
    (tmp_path / "mlflow-artifacts" / "large.bin").write_bytes(bytes(1_000_000))
    for count, size in ((0, 400_000), (1, 250_000), (2, 150_000), (3, 10)):
        found = plan_removal(tmp_path, most_bytes=size)
        assert ids(found) == [run.run_id for run in by_age[:count]], size


def test_running_runs_stay_and_with_them_all_results(make: Make, tmp_path: Path) -> None:
    running = make("2026-01-01T10:00:00.000+00:00", "a", status="running")
    ended = make("2026-01-01T10:00:00.000+00:00", "b")
    with running.hold():
        found = plan_removal(tmp_path, seconds=DAY)
    assert ids(found) == [ended.run_id]
    assert found.kept == {running.run_id: "it is running"}
    assert found.results == []


def test_a_run_that_goes_on_meanwhile_is_not_removed(make: Make, tmp_path: Path) -> None:
    folder = make("2026-01-01T10:00:00.000+00:00", "a", status="interrupted")
    found = plan_removal(tmp_path, seconds=DAY)
    with folder.hold(), pytest.raises(StorageError, match="in use by another process"):
        remove(found, tmp_path)
    assert folder.record().status == "interrupted"


def fake_registry(**aliases: int) -> Any:
    versions = [RegisteredVersion(number=n, tags={"qatline.run": f"run{n}"}) for n in (1, 2, 3)]
    return SimpleNamespace(
        name="cells", state=lambda: ModelState(aliases=aliases), versions=lambda: versions
    )


def test_runs_of_a_champion_and_of_its_predecessor_stay(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        folder = make("2026-01-01T10:00:00.000+00:00", f"key{number}", name="cells")
        folder.path.rename(tmp_path / f"run{number}")
    registry = fake_registry(champion=3, previous=1)
    monkeypatch.setattr(removal, "named_registry", lambda _: registry)
    found = plan_removal(tmp_path, seconds=DAY)
    assert [Path(run.path).name for run in found.runs] == ["run2"]
    assert found.kept == {
        "run1": "it made the predecessor of the champion of 'cells'",
        "run3": "it made the champion of 'cells'",
    }
    assert [path.name for path in found.results] == ["key2"]


def test_registered_runs_stay_while_the_registry_is_away(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: Any) -> Any:
        raise TrackingError("no answer")

    monkeypatch.setattr(removal, "named_registry", away)
    registered = make("2026-01-01T10:00:00.000+00:00", "a", name="cells")
    plain = make("2026-01-01T10:00:00.000+00:00", "b")
    found = plan_removal(tmp_path, seconds=DAY)
    assert ids(found) == [plain.run_id]
    assert found.kept == {registered.run_id: "its registry can't be read: no answer"}


def test_a_run_with_verdict_and_unreadable_config_stays(make: Make, tmp_path: Path) -> None:
    folder = make("2026-01-01T10:00:00.000+00:00", "a", name="cells")
    folder.config_file.write_text("of_another_version: 1\n")
    found = plan_removal(tmp_path, seconds=DAY)
    assert ids(found) == []
    assert found.kept[folder.run_id].startswith("its config can't be read: ")


def test_results_stay_if_a_run_starts_meanwhile(make: Make, tmp_path: Path) -> None:
    make("2026-01-01T10:00:00.000+00:00", "a")
    found = plan_removal(tmp_path, seconds=DAY)
    started = make(now(), "b", status="running")
    with started.hold(), pytest.raises(StorageError, match="A run was started"):
        remove(found, tmp_path)
    assert (tmp_path / "store" / "train_baseline" / "a").exists()


def test_a_killed_removal_is_completed_by_the_next_one(make: Make, tmp_path: Path) -> None:
    folder = make("2026-01-01T10:00:00.000+00:00", "a")
    left = folder.path.rename(tmp_path / f".{folder.run_id}.removed")
    found = plan_removal(tmp_path, seconds=DAY)
    assert ids(found) == []
    remove(found, tmp_path)
    assert not left.exists()


def test_damaged_runs_are_removed_by_age(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    assert ids(plan_removal(tmp_path, seconds=DAY)) == []
    os.utime(tmp_path / "broken", (0, 0))
    found = plan_removal(tmp_path, seconds=DAY)
    remove(found, tmp_path)
    assert ids(found) == ["broken"]
    assert not (tmp_path / "broken").exists()


def test_no_criterion_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Expected an age, a status or a size"):
        plan_removal(tmp_path)


def gc(folder: Path, *arguments: str) -> Any:
    runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})
    return runner.invoke(app, ["runs", "gc", *arguments, "--runs-dir", str(folder)])


def test_command_shows_first_and_removes_when_asked(make: Make, tmp_path: Path) -> None:
    folder = make("2026-01-01T10:00:00.000+00:00", "a")
    shown = gc(tmp_path, "--older-than", "30d")
    assert shown.exit_code == 0, shown.stderr
    assert folder.run_id in shown.stdout
    assert "1 run and 1 cached result, " in shown.stdout
    assert "Nothing is removed yet: add --delete." in shown.stdout
    assert folder.path.exists()
    content = json.loads(gc(tmp_path, "--older-than", "30d", "--delete", "--json").stdout)
    assert content["runs"] == [folder.run_id]
    assert content["results"] == ["train_baseline/a"]
    assert content["deleted"]
    assert not folder.path.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--older-than", "soon"], "--older-than: expected an age such as 12h or 30d"),
        (["--max-size", "big"], "--max-size: expected a size such as 500MB or 20GiB"),
        (["--status", "faild"], "Expected a status out of finished, failed, interrupted, damaged"),
        ([], "Expected an age, a status or a size"),
    ],
)
def test_command_refuses_bad_values(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = gc(tmp_path, *arguments)
    assert done.exit_code != 0
    assert message in " ".join(done.stderr.split())
