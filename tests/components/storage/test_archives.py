"""Archives of files: what is unpacked, and what is refused."""

import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from qat_lib.errors import DataError, StorageError
from qatline.components.storage.archives import safe_name, unpack_files

FILES = {"images/cat/1.png": b"one", "images/dog/2.png": b"two" * 1000, "images/notes.txt": b"no"}


def is_image(name: str) -> bool:
    return name.endswith(".png")


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("images")
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        folder = tarfile.TarInfo("./")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write(path: Path, files: dict[str, bytes]) -> Path:
    return write_zip(path, files) if path.suffix == ".zip" else write_tar(path, files)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "out" / "folder"
    made.mkdir(parents=True)
    return made


def below(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tgz", "A.ZIP"])
def test_unpack_files_writes_the_wanted_files(tmp_path: Path, folder: Path, name: str) -> None:
    write_files = write_zip if name.lower().endswith("zip") else write_tar
    assert unpack_files(write_files(tmp_path / name, FILES), folder, is_image) == 2
    assert below(folder) == {name: text for name, text in FILES.items() if is_image(name)}


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tgz"])
@pytest.mark.parametrize("name", ["../out.png", "/tmp/out.png", "a/../../out.png", "a\\..\\b.png"])
def test_unpack_files_lets_nothing_out_of_its_folder(
    tmp_path: Path, folder: Path, suffix: str, name: str
) -> None:
    archive = write(tmp_path / f"a{suffix}", {"first.png": b"1", name: b"2"})
    with pytest.raises(DataError, match="leads out of it"):
        unpack_files(archive, folder, is_image)
    assert [path.name for path in folder.parent.rglob("*.png")] in ([], ["first.png"])
    assert not Path("/tmp/out.png").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_unpack_files_refuses_links_in_tar_files(tmp_path: Path, folder: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        link = tarfile.TarInfo("images")
        link.type, link.linkname = kind, str(tmp_path)
        archive.addfile(link)
        content = tarfile.TarInfo("images/1.png")
        archive.addfile(content, io.BytesIO())
    with pytest.raises(DataError, match="its member 'images' is a link or no plain file"):
        unpack_files(tmp_path / "a.tar", folder, is_image)
    assert not (tmp_path / "1.png").exists()


def test_unpack_files_refuses_links_in_zip_files(tmp_path: Path, folder: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        link = zipfile.ZipInfo("images")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, str(tmp_path))
    with pytest.raises(DataError, match="its member 'images' is a link"):
        unpack_files(tmp_path / "a.zip", folder, is_image)


def test_unpack_files_refuses_a_name_that_is_there_twice(tmp_path: Path, folder: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("1.png"), io.BytesIO())
    with pytest.raises(DataError, match=r"it holds two members named '1\.png'"):
        unpack_files(tmp_path / "a.tar", folder, is_image)


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tgz"])
def test_unpack_files_refuses_a_part_of_an_archive(
    tmp_path: Path, folder: Path, suffix: str
) -> None:
    files = {f"{index}.png": os.urandom(40_000) for index in range(3)}
    archive = write(tmp_path / f"a{suffix}", files)
    archive.write_bytes(archive.read_bytes()[:70_000])
    with pytest.raises(DataError, match="can't be unpacked: expected a whole archive"):
        unpack_files(archive, folder, is_image)


@pytest.mark.parametrize(
    "tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
)
def test_unpack_files_refuses_every_cut_of_a_tar(tmp_path: Path, tar_format: int) -> None:
    names = ("1.png", f"{'long-' * 19}.png", "notes.txt", "empty.png", "2.png")
    files = {f"images/{name}": os.urandom(700) for name in names} | {"images/empty.png": b""}
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w", format=tar_format) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        end = tar.offset  # of the first of two empty blocks
    whole = {name: content for name, content in files.items() if is_image(name)}
    content = archive.read_bytes()
    # The edges of every block, and places inside of them.
    cuts = [cut for cut in range(end + 1024) if cut % 512 in {0, 1, 511} or cut % 37 == 0]
    for cut in cuts:
        archive.write_bytes(content[:cut])
        folder = tmp_path / str(cut)
        folder.mkdir()
        if cut < end + 512:
            with pytest.raises(DataError, match="can't be unpacked: expected a whole archive"):
                unpack_files(archive, folder, is_image)
        else:  # the end mark is there; the rest is padding
            assert unpack_files(archive, folder, is_image) == len(whole)
            assert below(folder) == whole


def test_unpack_files_refuses_every_cut_of_a_packed_tar(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "a.tgz", FILES)
    content = archive.read_bytes()
    for cut in range(len(content)):
        archive.write_bytes(content[:cut])
        folder = tmp_path / str(cut)
        folder.mkdir()
        with pytest.raises(DataError, match="can't be unpacked: expected a whole archive"):
            unpack_files(archive, folder, is_image)


@pytest.mark.parametrize("place", [0, 2])
def test_unpack_files_refuses_a_damaged_header(tmp_path: Path, folder: Path, place: int) -> None:
    archive = write_tar(tmp_path / "a.tar", {"1.png": b"1", "2.png": b"2"})
    content = bytearray(archive.read_bytes())
    content[512 * (1 + place) + 150] ^= 1  # the checksum of a header
    archive.write_bytes(content)
    with pytest.raises(DataError, match="the header of a member is damaged"):
        unpack_files(archive, folder, is_image)


def test_unpack_files_checks_the_checksum_of_a_packed_tar(tmp_path: Path, folder: Path) -> None:
    archive = write_tar(tmp_path / "a.tgz", FILES)
    content = bytearray(archive.read_bytes())
    content[-8] ^= 1  # CRC-32 of what is packed
    archive.write_bytes(content)
    with pytest.raises(DataError, match="CRC check failed"):
        unpack_files(archive, folder, is_image)


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tgz"])
def test_unpack_files_refuses_what_is_no_archive(tmp_path: Path, folder: Path, suffix: str) -> None:
    archive = tmp_path / f"a{suffix}"
    archive.write_bytes(b"\x1f\x8b" + b"no archive" * 100)
    with pytest.raises(DataError, match="can't be unpacked"):
        unpack_files(archive, folder, is_image)
    with pytest.raises(DataError, match="can't be unpacked: it is a folder"):
        unpack_files(folder, folder, is_image)


@pytest.mark.parametrize("suffix", [".zip", ".tgz"])
def test_unpack_files_refuses_a_bomb(
    tmp_path: Path, folder: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write(tmp_path / f"a{suffix}", {"big.txt": bytes(3 << 20), "1.png": b"1"})
    monkeypatch.setenv("QATLINE_MAX_UNPACKED", "2MiB")
    with pytest.raises(DataError, match="allow more: QATLINE_MAX_UNPACKED=1GiB"):
        unpack_files(archive, folder, is_image)
    monkeypatch.setenv("QATLINE_MAX_UNPACKED", "4MiB")
    assert unpack_files(archive, folder, is_image) == 1


def test_unpack_files_tells_that_the_disk_is_full(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("qatline.components.storage.archives.shutil.copyfileobj", full)
    with pytest.raises(StorageError, match="the disk is full"):
        unpack_files(write_tar(tmp_path / "a.tar", FILES), folder, is_image)


@pytest.mark.parametrize(("name", "below"), [("a/b.png", "a/b.png"), ("./b.png", "b.png")])
def test_safe_name_returns_names_below(name: str, below: str) -> None:
    assert str(safe_name(name)) == below


@pytest.mark.parametrize("name", ["", ".", "/a", "..", "a/..", "a\\b", "a\0b"])
def test_safe_name_refuses_other_names(name: str) -> None:
    with pytest.raises(ValueError, match="leads out of its folder"):
        safe_name(name)
