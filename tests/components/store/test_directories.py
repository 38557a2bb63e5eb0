import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from qat_lib.errors import StorageError
from qatline.components.store import directories as artifacts
from qatline.components.store.directories import (
    Manifest,
    describe,
    materialize,
    publish,
    read_step_manifest,
    verify_directory,
)
from qatline.components.support.disk_errors import is_disk_full


def unfinished(folder: Path, text: str = "content") -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text(text)
    (folder / "sub" / "b.bin").write_bytes(bytes(100))
    return folder


def finished(folder: Path, text: str = "content") -> Path:
    work = unfinished(folder.with_name(f"{folder.name}-work"), text)
    assert publish(
        work, folder, describe(work, step="s", key="k", metrics={"accuracy": 0.5}, seconds=2.0)
    )
    return folder


def test_a_published_directory_verifies_and_keeps_its_manifest(tmp_path: Path) -> None:
    final = finished(tmp_path / "out")
    manifest = verify_directory(final)
    assert set(manifest.files) == {"a.txt", "sub/b.bin"}
    assert manifest.files["a.txt"].size == 7
    assert (manifest.step, manifest.key, manifest.metrics, manifest.seconds) == (
        "s",
        "k",
        {"accuracy": 0.5},
        2.0,
    )
    assert Manifest.from_dict(json.loads((final / "manifest.json").read_text())) == manifest
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_digest_is_about_content_only(tmp_path: Path) -> None:
    first, second = (
        describe(unfinished(tmp_path / name), seconds=s) for name, s in (("x", 1.0), ("y", 9.0))
    )
    assert first.digest == second.digest
    assert first.digest != describe(unfinished(tmp_path / "z", "Content")).digest
    (tmp_path / "x" / "history.json").write_text('[{"loss": 0.5, "seconds": 1.0}]')
    (tmp_path / "y" / "history.json").write_text('[{"loss": 0.5, "seconds": 22.0}]')
    first, second = (describe(tmp_path / name) for name in ("x", "y"))
    assert first.digest == second.digest
    assert first.files["history.json"].sha256 != second.files["history.json"].sha256
    assert Manifest.from_dict(json.loads(json.dumps(first.to_dict()))) == first


def damage_missing(final: Path) -> None:
    (final / "a.txt").unlink()


def damage_short(final: Path) -> None:
    (final / "sub" / "b.bin").write_bytes(bytes(99))


def damage_changed(final: Path) -> None:
    (final / "a.txt").write_text("CONTENT")


def damage_no_manifest(final: Path) -> None:
    (final / "manifest.json").unlink()


def damage_half_manifest(final: Path) -> None:
    text = (final / "manifest.json").read_text()
    (final / "manifest.json").write_text(text[: len(text) // 2])


def damage_edited_manifest(final: Path) -> None:
    data = json.loads((final / "manifest.json").read_text())
    del data["files"]["a.txt"]
    (final / "manifest.json").write_text(json.dumps(data))


def damage_edited_metrics(final: Path) -> None:
    data = json.loads((final / "manifest.json").read_text())
    data["metrics"]["accuracy"] = 0.99
    (final / "manifest.json").write_text(json.dumps(data))


def damage_extra(final: Path) -> None:
    (final / "sub" / "c.txt").write_text("more")


def damage_link(final: Path) -> None:
    elsewhere = final.with_name("elsewhere.txt")
    (final / "a.txt").rename(elsewhere)
    (final / "a.txt").symlink_to(elsewhere)


def damage_linked_folder(final: Path) -> None:
    elsewhere = final.with_name("elsewhere")
    (final / "sub").rename(elsewhere)
    (final / "sub").symlink_to(elsewhere, target_is_directory=True)


def damage_other_version(final: Path) -> None:
    data = json.loads((final / "manifest.json").read_text())
    (final / "manifest.json").write_text(json.dumps({**data, "version": 99}))


DAMAGES = {
    damage_missing: "a.txt is missing",
    damage_short: "99 bytes, expected 100",
    damage_changed: "content of a.txt changed",
    damage_no_manifest: "not finished",
    damage_half_manifest: "no valid JSON.*Run the step that writes it again",
    damage_edited_manifest: "own seal",
    damage_edited_metrics: "own seal",
    damage_extra: r"sub/c\.txt was added",
    damage_link: r"a\.txt is not a plain file",
    damage_linked_folder: "sub is not a plain file",
    damage_other_version: "version 2, received 99",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_every_kind_of_damage_is_found(tmp_path: Path, damage) -> None:
    final = finished(tmp_path / "out")
    damage(final)
    with pytest.raises(StorageError, match=DAMAGES[damage]):
        verify_directory(final)


def test_verify_directory_without_contents_compares_sizes(
    tmp_path: Path,
) -> None:
    final = finished(tmp_path / "out")
    damage_changed(final)
    assert verify_directory(final, contents=False).step == "s"
    damage_short(final)
    with pytest.raises(StorageError):
        verify_directory(final, contents=False)


def test_verify_finds_extra_files_and_links(tmp_path: Path) -> None:
    final = finished(tmp_path / "out")
    damage_extra(final)
    with pytest.raises(StorageError, match="was added"):
        verify_directory(final, contents=False)
    (final / "sub" / "c.txt").unlink()
    damage_link(final)
    with pytest.raises(StorageError, match="not a plain file"):
        verify_directory(final, contents=False)


def test_the_second_of_two_writers_loses_gracefully(tmp_path: Path) -> None:
    final = finished(tmp_path / "out", "first")
    late = unfinished(tmp_path / "late", "second")
    assert not publish(late, final, describe(late))
    assert (final / "a.txt").read_text() == "first"
    assert not late.exists()


def test_an_unfinished_directory_gives_way(tmp_path: Path) -> None:
    final = finished(tmp_path / "out", "broken")
    damage_no_manifest(final)
    work = unfinished(tmp_path / "work", "whole")
    assert publish(work, final, describe(work))
    assert (final / "a.txt").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_link_is_refused(tmp_path: Path) -> None:
    work = unfinished(tmp_path / "work")
    (work / "link").symlink_to(work / "a.txt")
    with pytest.raises(StorageError, match="not a plain file"):
        describe(work)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    work = unfinished(tmp_path / "work")
    manifest = describe(work)

    def full(self: Path, *_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(StorageError, match=r"the disk is full.*MiB free"):
        publish(work, tmp_path / "out", manifest)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_recognized_through_other_errors() -> None:
    outer = RuntimeError("h5py gave up")
    outer.__cause__ = OSError(errno.ENOSPC, "no space")
    assert is_disk_full(outer)
    assert is_disk_full(RuntimeError("[Errno 28] write failed: 'No space left on device'"))
    assert not is_disk_full(OSError(errno.EACCES, "no"))


def test_materialize_copies_replaces_and_shares_the_blocks(tmp_path: Path) -> None:
    source = finished(tmp_path / "store")
    target = tmp_path / "run" / "dataset"
    target.mkdir(parents=True)
    (target / "old").write_text("old")
    materialize(source, target)
    assert verify_directory(target) == read_step_manifest(source)
    assert not (target / "old").exists()
    assert (target / "a.txt").stat().st_ino == (source / "a.txt").stat().st_ino
    assert [path.name for path in target.parent.iterdir()] == ["dataset"]


def test_materialize_copies_where_links_are_not_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_device(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    source = finished(tmp_path / "store")
    monkeypatch.setattr(artifacts.os, "link", other_device)
    materialize(source, tmp_path / "target")
    verify_directory(tmp_path / "target")


KILLED_AT_EACH_CALL = """
    import os, signal, sys
    from pathlib import Path
    from qatline.components.store import directories as artifacts

    root = Path(sys.argv[1])

    def killed_at(count):
        # Count what reaches the disk, and die just before the given one.
        left = [count]

        def counted(function):
            def call(*args, **kwargs):
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return function(*args, **kwargs)
            return call

        os.fsync, os.rename, os.open = counted(os.fsync), counted(os.rename), counted(os.open)
        Path.write_text, Path.rename = counted(Path.write_text), counted(Path.rename)
        work, final = root / f"work{count}", root / f"out{count}"
        work.mkdir()
        for index in range(3):
            (work / f"{index}.bin").write_bytes(os.urandom(5000))
        artifacts.publish(work, final, artifacts.describe(work, step="s", key="k"))

    killed = 0
    for count in range(200):
        child = os.fork()
        if child == 0:
            killed_at(count)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break
        killed += 1
        final = root / f"out{count}"
        if final.exists():
            artifacts.verify_directory(final)
    artifacts.verify_directory(root / f"out{count}")
    sys.stdout.write(str(killed))
"""


def test_killed_publish_leaves_no_half_directory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED_AT_EACH_CALL), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # One write, one rename, and open + fsync for four files, the directory and its parent.
    assert int(done.stdout) >= 12


def test_file_size_limit_counts_as_full_disk(tmp_path: Path) -> None:
    code = f"""
    import resource, signal
    from pathlib import Path
    from qatline.components.store.directories import describe, publish
    from qat_lib.errors import StorageError

    work = Path({str(tmp_path)!r}) / "work"
    work.mkdir()
    (work / "a").write_bytes(bytes(50))
    manifest = describe(work)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    try:
        publish(work, work.with_name("out"), manifest)
    except StorageError as error:
        assert "the disk is full" in str(error), error
        assert not work.exists() and not work.with_name("out").exists()
        raise SystemExit(7)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 7, done.stderr


def test_publish_succeeds_where_only_the_cleaning_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left behind is swept later: the result stands."""

    def busy(path: Path, *, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(errno.EBUSY, "Device or resource busy")

    final = finished(tmp_path / "out", "broken")
    damage_no_manifest(final)
    work, late = unfinished(tmp_path / "work", "whole"), unfinished(tmp_path / "late", "second")
    monkeypatch.setattr(artifacts.shutil, "rmtree", busy)
    assert publish(work, final, describe(work))
    assert not publish(late, final, describe(late))
    assert (final / "a.txt").read_text() == "whole"


def test_publish_makes_the_folders_above(tmp_path: Path) -> None:
    work, final = unfinished(tmp_path / "work"), tmp_path / "a" / "b" / "out"
    assert publish(work, final, describe(work))
    assert publish(unfinished(tmp_path / "more"), final.with_name("more"), describe(final))


def test_publish_tells_a_directory_that_is_gone(tmp_path: Path) -> None:
    work = unfinished(tmp_path / "work")
    manifest = describe(work)
    work.rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="out can't be written"):
        publish(work, tmp_path / "out", manifest)


def test_publish_gives_up_after_three_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = tmp_path / "out"
    work, tries = unfinished(tmp_path / "work"), []
    manifest, rename = describe(work), Path.rename

    def taken(self: Path, target: Path) -> Path:
        if target != final:
            return rename(self, target)
        tries.append(target)
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    monkeypatch.setattr(Path, "rename", taken)
    with pytest.raises(StorageError, match="another process keeps changing it"):
        publish(work, final, manifest)
    assert len(tries) == 3


def test_publish_refuses_non_json_metrics(tmp_path: Path) -> None:
    work = unfinished(tmp_path / "work")
    with pytest.raises(ValueError, match="not JSON compliant"):
        publish(work, tmp_path / "out", describe(work, metrics={"loss": float("nan")}))
    assert not (tmp_path / "out").exists()


def test_materialize_tells_a_source_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="target can't be written"):
        materialize(tmp_path / "nothing", tmp_path / "deep" / "er" / "target")
    assert list((tmp_path / "deep" / "er").iterdir()) == []


def test_materialize_tells_a_disk_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    source = finished(tmp_path / "store")
    monkeypatch.setattr(artifacts.os, "link", broken)
    with pytest.raises(StorageError, match="Input/output error"):
        materialize(source, tmp_path / "run" / "target")
    assert list((tmp_path / "run").iterdir()) == []
