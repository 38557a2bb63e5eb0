import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from qat_lib.errors import ConfigError, StorageError
from qat_lib.files.whole_files import unfinished_name
from qatline.pipelines.config.run_config import load_config
from qatline.pipelines.run.folder import RunFolder, create_run, find_run
from qatline.pipelines.run.record import read_record, write_json


def make(output: Path, *overrides: str) -> RunFolder:
    config = load_config(overrides=[f"output={output}", *overrides])
    return create_run(config, pipeline="a:b", cache=True, version="1")


def test_a_new_run_can_be_read_back(tmp_path: Path) -> None:
    folder = make(tmp_path, "training.epochs=3", "model.options={width: 8}")
    assert folder.config().training.epochs == 3
    assert folder.config().model.options == {"width": 8}
    record = folder.record()
    assert (record.run_id, record.status, record.cache) == (folder.run_id, "running", True)
    folder.finish("finished")
    assert folder.record().status == "finished"
    assert folder.record().ended is not None


def test_the_store_is_shared_unless_asked_otherwise(tmp_path: Path) -> None:
    folder = make(tmp_path)
    assert folder.store_dir(shared=True) == tmp_path / "store"
    assert folder.store_dir(shared=False) == folder.path / "store"


def test_an_output_that_is_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file/.* can't be written"):
        make(tmp_path / "file")


def test_the_latest_unfinished_run_is_resumed(tmp_path: Path) -> None:
    first, second, third = (make(tmp_path) for _ in range(3))
    for folder, created in ((first, "2026-01-01"), (second, "2026-01-02"), (third, "2026-01-03")):
        folder.write_record(replace(folder.record(), created=created))
    third.finish("finished")
    first.finish("failed")
    assert find_run(tmp_path, None) == second
    assert find_run(tmp_path, first.run_id) == first
    assert find_run(tmp_path / "elsewhere", str(first.path)) == first


def test_nothing_to_resume_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is none to resume"):
        find_run(tmp_path, None)
    folder = make(tmp_path)
    with pytest.raises(ConfigError, match=rf"received 'nope'. Its latest runs: {folder.run_id}"):
        find_run(tmp_path, "nope")


def test_resuming_under_another_config_names_the_difference(tmp_path: Path) -> None:
    folder = make(tmp_path, "qat.epochs=3")
    folder.check_same_config(load_config(overrides=["qat.epochs=3", "output=elsewhere"]))
    folder.check_same_config(load_config(overrides=["qat.epochs=3", "cluster.cpu=4"]))
    with pytest.raises(ConfigError, match=r"was started with qat.epochs=3, received 4"):
        folder.check_same_config(load_config(overrides=["qat.epochs=4"]))


def test_held_folder_is_refused_unless_holder_died(tmp_path: Path) -> None:
    folder = make(tmp_path)
    script = (
        "import sys, pathlib\nfrom qatline.pipelines.run.folder import RunFolder\n"
        "with RunFolder(path=pathlib.Path(sys.argv[1])).hold():\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(StorageError, match=rf"in use by another process \(pid {holder.pid}\)"),
            folder.hold(0.0),
        ):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with folder.hold(0.0):
        pass


def test_damaged_files_are_told(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.record_file.write_text('{"run_id": "x"')
    with pytest.raises(StorageError, match=r"run.json: received no valid JSON"):
        folder.record()
    write_json(folder.record_file, {"run_id": "x", "pipeline": "y", "colour": "z"})
    with pytest.raises(StorageError, match="another version of qatline"):
        folder.record()
    write_json(folder.record_file, [1])
    with pytest.raises(StorageError, match="Expected a JSON object"):
        read_record(folder.record_file)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_record(path) == {"a": 1}


def test_write_on_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "run.json"
    write_json(path, {"a": 1})
    mode = path.stat().st_mode
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"a": 2})
    assert read_record(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / "plain").touch()
    assert mode == (tmp_path / "plain").stat().st_mode


def test_create_run_on_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="the disk is full"):
        make(tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []


def test_settle_notes_a_run_whose_process_is_gone(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.events_file.write_text("")
    os.utime(folder.events_file, (1_700_000_000, 1_700_000_000))
    with folder.hold():
        assert folder.settle().status == "running"
    assert folder.record().status == "running"
    assert folder.settle().status == "interrupted"
    assert folder.record().status == "interrupted"
    assert folder.record().ended == "2023-11-14T22:13:20.000+00:00"
    folder.finish("failed")
    assert folder.settle().status == "failed"


def test_find_run_settles_what_it_looks_at(tmp_path: Path) -> None:
    folder = make(tmp_path)
    assert find_run(tmp_path, None) == folder
    assert folder.record().status == "interrupted"


def test_hold_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.artifacts_dir.mkdir()
    (folder.path / unfinished_name("run.json")).write_text("{")
    (folder.artifacts_dir / unfinished_name("dataset")).symlink_to("nowhere")
    (folder.path / ".mine.tmp").write_text("of somebody else")
    task = folder.attempt_dir(1) / "qatline-2026" / "prepare-data-component"
    (task / unfinished_name("dataset") / "sub").mkdir(parents=True)
    with folder.hold():
        assert sorted(path.name for path in folder.path.glob(".*")) == [".lock", ".mine.tmp"]
        assert list(folder.artifacts_dir.iterdir()) == []
        assert list(task.iterdir()) == []


def test_report_names_the_missing_step(tmp_path: Path) -> None:
    folder = make(tmp_path)
    with pytest.raises(StorageError, match=f"promote.*qatline resume {folder.run_id}"):
        folder.report()
    folder.report_file.write_text("<html>")
    assert folder.report() == folder.path / "report.html"
