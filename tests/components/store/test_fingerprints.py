import os
import sys
from pathlib import Path

import pytest

from qat_lib.errors import ConfigError, DataError
from qatline.components.store import fingerprints
from qatline.components.store.fingerprints import (
    OWN_FOLDERS,
    code_digest,
    file_digest,
    library_versions,
    listing_digest,
    machine_identity,
    package_digest,
    settings_files,
    user_code_digest,
)


@pytest.fixture(autouse=True)
def own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for our packages, which may change during the tests."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_package_a").mkdir()
    (folder / "own_package_a" / "__init__.py").write_text("")
    monkeypatch.setattr(fingerprints, "OWN_FOLDERS", (folder / "own_package_a",))
    return folder / "own_package_a"


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on sys.path with two user modules, one importing the other."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "user_net_a.py").write_text(
        "import json\nfrom user_blocks_a import block\n\ndef build():\n    return block\n"
    )
    (tmp_path / "user_blocks_a.py").write_text("block = 1\n")
    (tmp_path / "user_other_a.py").write_text("x = 1\n")
    return tmp_path


def user_digest() -> str:
    return code_digest(
        {"model": {"name": "user_net_a:build"}, "quantization": {"cases": ["TensorRTQDQCase"]}}
    )


def test_the_users_module_and_what_it_imports_count(users: Path) -> None:
    before = user_digest()
    assert before == user_digest()
    assert before != code_digest({"model": {"name": "resnet_digits"}})
    (users / "user_other_a.py").write_text("x = 2\n")
    assert user_digest() == before
    (users / "user_blocks_a.py").write_text("block = 2\n")
    assert user_digest() != before


def test_user_package_counts_as_a_whole(users: Path) -> None:
    (users / "user_pkg_a" / "nets").mkdir(parents=True)
    (users / "user_pkg_a" / "__init__.py").write_text("")
    (users / "user_pkg_a" / "nets" / "small.py").write_text("size = 1\n")
    settings = {"quantization": {"cases": ["user_pkg_a.cases:MyCase"]}}
    before = code_digest(settings)
    (users / "user_pkg_a" / "nets" / "small.py").write_text("size = 2\n")
    assert code_digest(settings) != before


def test_naming_a_module_does_not_import_it(users: Path) -> None:
    user_digest()
    assert "user_net_a" not in sys.modules


def test_a_module_that_cannot_be_found_is_named() -> None:
    with pytest.raises(ConfigError, match=r"module 'no_such_module_q'.*PYTHONPATH"):
        code_digest({"model": {"name": "no_such_module_q:build"}})


def test_libraries_are_known_by_version_not_by_source() -> None:
    assert code_digest({"model": {"name": "keras.applications:MobileNetV2"}}) == code_digest({})


def digest_of_a_new_process() -> str:
    package_digest.cache_clear()
    return code_digest({})


def test_our_own_packages_count_with_their_data(own: Path) -> None:
    before = digest_of_a_new_process()
    (own / "__init__.py").write_text("changed = 1\n")
    changed = digest_of_a_new_process()
    (own / "template.html").write_text("")
    with_data = digest_of_a_new_process()
    (own / "__pycache__").mkdir()
    (own / "__pycache__" / "x.pyc").write_text("")
    assert len({before, changed, with_data}) == 3
    assert digest_of_a_new_process() == with_data


def test_a_process_reads_our_own_packages_once(own: Path) -> None:
    before = code_digest({})
    (own / "__init__.py").write_text("changed = 1\n")
    assert code_digest({}) == before


def test_the_real_packages_are_covered() -> None:
    files = {path.name for folder in OWN_FOLDERS for path in folder.rglob("*")}
    assert {"step.py", "evaluate.py", "report.html.j2"} <= files


def test_versions_tell_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "LIBRARIES", ("numpy", "no-such-library"))
    versions = library_versions()
    assert versions["numpy"]
    assert versions["no-such-library"] is None
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))


def test_files_that_settings_name_count_by_content(tmp_path: Path) -> None:
    data, model = tmp_path / "data.npz", tmp_path / "model.keras"
    data.write_bytes(b"1")
    model.write_bytes(b"1")
    settings = {"data": {"path": str(data)}, "model": {"name": str(model), "weights": None}}
    before = settings_files(settings)
    assert before == {"data.path": file_digest(data), "model.name": file_digest(model)}
    model.write_bytes(b"2")
    after = settings_files(settings)
    assert after["data.path"] == before["data.path"]
    assert after["model.name"] != before["model.name"]


def test_missing_file_is_left_to_the_step() -> None:
    assert (
        settings_files({"data": {"path": "/no/such.npz"}, "model": {"name": "resnet_digits"}}) == {}
    )


def test_a_folder_counts_by_names_sizes_and_times(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    image = tmp_path / "cat" / "1.png"
    image.write_bytes(b"1")
    before = settings_files({"data": {"path": str(tmp_path)}})["data.path"]
    assert before == listing_digest(tmp_path)
    os.utime(image, ns=(1, 1))
    touched = listing_digest(tmp_path)
    image.rename(tmp_path / "cat" / "2.png")
    assert len({before, touched, listing_digest(tmp_path)}) == 3


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="can't be read"):
        file_digest(tmp_path)


def test_the_machine_is_the_same_each_time() -> None:
    assert machine_identity() == machine_identity()


def test_code_digest_covers_namespace_package(users: Path) -> None:
    (users / "user_space_a").mkdir()
    (users / "user_space_a" / "net.py").write_text("size = 1\n")
    settings = {"model": {"name": "user_space_a.net:build"}}
    before = code_digest(settings)
    (users / "user_space_a" / "net.py").write_text("size = 2\n")
    assert code_digest(settings) != before


def test_code_digest_covers_unparsable_module(users: Path) -> None:
    """The step that imports it reports the error, with its line."""
    (users / "user_net_a.py").write_text("def build(:\n")
    before = user_digest()
    (users / "user_net_a.py").write_text("def build(:\n\n")
    assert user_digest() != before


def test_settings_files_skips_only_non_files(tmp_path: Path) -> None:
    (tmp_path / "model.keras").write_bytes(b"1")
    settings = {
        "data": {"path": None},
        "model": {"name": str(tmp_path), "weights": str(tmp_path / "model.keras")},
        "quantization": None,
    }
    assert settings_files(settings) == {"model.weights": file_digest(tmp_path / "model.keras")}


def test_listing_digest_reports_unlistable_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Path, pattern: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "rglob", fails)
    with pytest.raises(DataError, match=r"can't be listed: .*Input/output error"):
        listing_digest(tmp_path)


def test_machine_identity_goes_by_processor_gpu_and_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"/proc/cpuinfo": "model name\t: A\nflags\t: x\nMHz : 1\nmodel name\t: A"}
    monkeypatch.setattr(Path, "is_file", lambda self: str(self) in place)
    monkeypatch.setattr(Path, "read_text", lambda self, **_: place[str(self)])
    monkeypatch.setattr(
        Path, "glob", lambda self, pattern: [Path(name) for name in place if "gpus" in name]
    )
    before = machine_identity()
    place["/proc/cpuinfo"] = "flags\t: x\nmodel name\t: A\nMHz : 2"
    assert machine_identity() == before
    found = {before}
    for name, text in (
        ("/proc/cpuinfo", "model name\t: A\nflags\t: x y"),
        ("/proc/cpuinfo", "Features\t: asimd"),
        ("/proc/driver/nvidia/version", "NVRM version: 1"),
        ("/proc/driver/nvidia/gpus/0/information", "Model: H"),
        ("/proc/driver/nvidia/gpus/1/information", "GPU UUID: 1"),
    ):
        place[name] = text
        found.add(machine_identity())
    assert len(found) == 6


def test_code_digest_covers_the_names_of_files(own: Path) -> None:
    (own / "a.txt").write_text("1")
    before = digest_of_a_new_process()
    (own / "a.txt").rename(own / "b.txt")
    named = digest_of_a_new_process()
    (own / "sub").mkdir()
    (own / "b.txt").rename(own / "sub" / "b.txt")
    assert len({before, named, digest_of_a_new_process()}) == 3


def test_installed_packages_count_only_where_settings_name_them(users: Path) -> None:
    (users / "user_net_a.py").write_text(
        "import pluggy\nimport no_such_module_q\nimport user_blocks_a\n"
    )
    names = [path.name for path in fingerprints._user_sources(["user_net_a"])]
    assert names == ["user_blocks_a.py", "user_net_a.py"]
    assert "_hooks.py" in [path.name for path in fingerprints._user_sources(["pluggy"])]


def test_imported_names_are_those_of_absolute_imports(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import one.part, two as three\nfrom four.part import x\nfrom . import y\nfrom .five import z\n"
        "import qatline.components\ndef f():\n    import six\n"
    )
    assert fingerprints._imported_names(tmp_path / "a.py") == {"one", "two", "four", "six"}


def test_module_references_are_found_at_any_depth() -> None:
    value = {
        "a": [{"b": ("one.two:f", "no reference")}, "three:g"],
        "c": "tf:h",
        "d": "keras.x:i",
        "e": 5,
    }
    assert list(fingerprints._module_references(value)) == ["one.two", "three"]


def test_user_code_digest_covers_the_users_code_alone(users: Path, own: Path) -> None:
    before = user_code_digest("user_net_a:build")
    assert len(before) == 64
    (own / "new.py").write_text("")
    assert user_code_digest("user_net_a:build") == before
    (users / "user_blocks_a.py").write_text("block = 2\n")
    assert user_code_digest("user_net_a:build") != before
    assert user_code_digest("resnet20_cifar10") == ""
