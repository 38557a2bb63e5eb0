import os
from pathlib import Path

import pytest

from pipelines.model_views import check_outputs
from pipelines.run_folder import write_text
from qat_lib.errors import ConfigError
from qat_lib.output_files import check_target


def test_check_target_takes_a_file_and_a_free_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name in ("file", "new", "folder/new"):
        check_target(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "problem"), [("folder", "Is a directory"), ("pipe", "found a device, a pipe"), ("link", "found a device")]
)
def test_what_is_no_file_is_never_replaced(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError, match=problem):
        check_target(tmp_path / name)
    with pytest.raises(OSError, match=problem):
        write_text(tmp_path / name, "text")
    with pytest.raises(ConfigError, match=f"Could not write .*{name}: .*{problem}"):
        check_outputs(None, tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "pipe").is_fifo()


def test_check_outputs_names_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="Not a directory"):
        check_outputs(tmp_path / "file" / "x")
    with pytest.raises(ConfigError, match="Is a directory"):
        check_outputs(Path(""))


def test_write_text_leaves_nothing_behind_when_it_fails(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a", "\udcff")
    assert list(tmp_path.iterdir()) == []
