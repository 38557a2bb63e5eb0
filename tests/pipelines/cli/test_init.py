from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qatline.pipelines.cli.main import app
from qatline.pipelines.config.run_config import load_config

FILES = {
    *("qatline.yaml", "project.py", "test_project.py", "pyproject.toml", ".gitignore"),
    *(".github", "schedule.sh"),
}


def init(folder: Path) -> tuple[int, str]:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["init", str(folder)])
    return done.exit_code, done.output


@pytest.mark.parametrize("exists", [False, True])
def test_init_writes_a_new_or_an_empty_folder(tmp_path: Path, *, exists: bool) -> None:
    folder = tmp_path / "my vision"
    if exists:
        folder.mkdir()
    code, output = init(folder)
    assert (code, "Next: cd" in output) == (0, True)
    assert {path.name for path in folder.iterdir()} == FILES
    config = load_config(folder / "qatline.yaml")
    assert (config.task.name, config.model.name) == ("project:Levels", "project:network")
    assert "registry.name=my-vision" in (folder / "schedule.sh").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["my vision"]


def test_init_fills_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vision").mkdir()
    monkeypatch.chdir(tmp_path / "vision")
    assert init(Path())[0] == 0
    assert {path.name for path in Path().iterdir()} == FILES
    assert "registry.name=vision" in Path("schedule.sh").read_text()


def test_init_leaves_a_folder_with_files_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    code, output = init(tmp_path)
    assert code == 2
    assert "Expected a new or empty folder" in output
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_init_does_not_replace_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert init(tmp_path / "file")[0] == 2
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.matrix
def test_generated_project_passes_its_test_and_check(tmp_path: Path) -> None:
    init(tmp_path / "project")
    check = ["qatline.pipelines.cli.main", "check", "--config", "qatline.yaml"]
    for command in (["pytest", "-q", "-p", "no:cacheprovider"], check):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path / "project",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
