"""Damage to an engine file is named; nothing half-written is left."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qat_lib.engines import (
    BuildSpec,
    EngineArtifact,
    build_engine,
    files,
    load_engine,
    manifest_path,
    read_manifest,
)
from qat_lib.engines.manifest import seal
from qat_lib.errors import EngineBuildError, EngineLoadError

Edit = Callable[[dict[str, Any]], None]


def edit_manifest(engine: Path, edit: Edit) -> None:
    path = manifest_path(engine)
    values = json.loads(path.read_text())
    edit(values)
    path.write_text(seal(values))


def set_values(**changes: Any) -> Edit:
    return lambda values: values.update(changes)


# ---------------------------------------------------------------------- damage
def test_one_changed_byte_is_noticed(engine_copy: Path) -> None:
    data = bytearray(engine_copy.read_bytes())
    data[len(data) // 2] ^= 1
    engine_copy.write_bytes(data)
    with pytest.raises(EngineLoadError, match="the file is damaged"):
        load_engine(engine_copy)


def test_truncated_file_is_noticed(engine_copy: Path) -> None:
    engine_copy.write_bytes(engine_copy.read_bytes()[:-100])
    with pytest.raises(EngineLoadError, match="truncated"):
        load_engine(engine_copy)


def test_missing_engine_and_missing_manifest(engine_copy: Path, tmp_path: Path) -> None:
    manifest_path(engine_copy).unlink()
    with pytest.raises(EngineLoadError, match=r"needs its manifest model\.engine\.json next to it"):
        load_engine(engine_copy)
    with pytest.raises(EngineLoadError, match="There is no engine file"):
        load_engine(tmp_path / "missing" / "other.engine")


def test_content_that_the_backend_refuses(engine_copy: Path) -> None:
    """The digest is right, the content wrong: the backend's message is translated."""
    data = b"not an engine" * 100
    engine_copy.write_bytes(data)
    edit_manifest(engine_copy, set_values(digest=sha256(data).hexdigest(), bytes=len(data)))
    with pytest.raises(EngineLoadError, match="refuses the engine file"):
        load_engine(engine_copy)


# ---------------------------------------------------------------------- elsewhere
def foreign_version(values: dict[str, Any]) -> None:
    values["backend_version"] = "1.0"


def foreign_cpu(values: dict[str, Any]) -> None:
    values["device"]["flags"].append("avx1024")


def foreign_kind_of_cpu(values: dict[str, Any]) -> None:
    flags = values["device"]["flags"]
    wide = [flag for flag in flags if "vnni" in flag or flag.startswith("amx")]
    # The flags of an older CPU are all here too.
    values["device"]["flags"] = (
        [f for f in flags if f not in wide] if wide else [*flags, "avx_vnni"]
    )


def foreign_architecture(values: dict[str, Any]) -> None:
    values["device"]["architecture"] = "riscv"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (foreign_version, r"1\.0, here is"),
        (foreign_cpu, "this CPU lacks avx1024"),
        (foreign_kind_of_cpu, "it was built and compared on"),
        (foreign_architecture, "for riscv, this machine is"),
    ],
)
def test_engine_of_elsewhere_is_refused_or_rebuilt(
    engine_copy: Path,
    built: EngineArtifact,
    edit: Edit,
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    edit_manifest(engine_copy, edit)
    before = engine_copy.read_bytes()
    with pytest.raises(EngineLoadError, match=message):
        load_engine(engine_copy, rebuild=False)
    with load_engine(engine_copy) as rebuilt, load_engine(built.path) as original:
        assert "It is rebuilt from" in caplog.text
        assert rebuilt.manifest.backend_version == original.manifest.backend_version
        batch = original.random_batch(3)
        np.testing.assert_array_equal(
            rebuilt.infer(batch)["logits"], original.infer(batch)["logits"]
        )
    assert engine_copy.read_bytes() == before


def test_no_rebuild_from_another_onnx(engine_copy: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed.onnx"
    changed.write_bytes(b"something else")

    def edit(values: dict[str, Any]) -> None:
        foreign_version(values)
        values["source"]["path"] = str(changed)

    edit_manifest(engine_copy, edit)
    with pytest.raises(EngineLoadError, match="is gone or has changed"):
        load_engine(engine_copy)


# ---------------------------------------------------------------------- writing
def test_disk_full_leaves_nothing(
    int8_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EngineBuildError, match="disk or its quota is full"):
        build_engine(
            int8_onnx, BuildSpec(backend="onnxruntime"), output=tmp_path / "out" / "model.engine"
        )
    assert list((tmp_path / "out").iterdir()) == []


LIMITED = """
import resource, signal, sys
from pathlib import Path
from qat_lib.engines.files import together
from qat_lib.errors import EngineBuildError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    with together(Path(sys.argv[1])) as write:
        write(Path(sys.argv[1]), b"0" * 100000)
except EngineBuildError as error:
    sys.stdout.write(str(error))
"""


def test_a_limit_of_the_operating_system_leaves_nothing(tmp_path: Path) -> None:
    """The same with a write that the kernel refuses halfway."""
    target = tmp_path / "model.engine"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(target)], capture_output=True, text=True, check=True
    )
    assert "disk or its quota is full (File too large)" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_old_engine_survives_a_failed_build(
    engine_copy: Path, int8_onnx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = engine_copy.read_bytes()
    monkeypatch.setattr(
        os, "replace", lambda *_: (_ for _ in ()).throw(PermissionError(errno.EPERM, "denied"))
    )
    with pytest.raises(EngineBuildError, match="choose a directory that can be written"):
        build_engine(int8_onnx, BuildSpec(backend="onnxruntime"), output=engine_copy)
    assert engine_copy.read_bytes() == before
    assert not [path for path in engine_copy.parent.iterdir() if path.name.endswith(".tmp")]


def test_output_below_a_file_is_an_error(int8_onnx: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineBuildError, match="choose a directory"):
        build_engine(
            int8_onnx, BuildSpec(backend="onnxruntime"), output=tmp_path / "file" / "model.engine"
        )


def test_files_get_the_usual_permissions(engine_copy: Path) -> None:
    old = os.umask(0o027)
    try:
        with files.together(engine_copy) as write:
            write(engine_copy, b"x")
    finally:
        os.umask(old)
    assert engine_copy.stat().st_mode & 0o777 == 0o640


KILLED = """
import os, signal, sys
from pathlib import Path
from qat_lib.engines.files import together
synced = []
def killed(descriptor):
    synced.append(descriptor)
    if len(synced) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = killed
directory = Path(sys.argv[1])
with together(directory / "a") as write:
    write(directory / "a", b"new" * 1000)
    write(directory / "b", b"new" * 1000)
"""


def test_a_killed_builder_changes_nothing_and_is_swept(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"
    with files.together(tmp_path / "b") as write:
        write(tmp_path / "b", b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_load_engine_waits_for_the_second_of_two_files(engine_copy: Path) -> None:
    engine, torn = engine_copy.read_bytes(), threading.Event()

    def build() -> None:
        with files.locked(manifest_path(engine_copy)):
            engine_copy.write_bytes(bytes(len(engine)))
            torn.set()
            time.sleep(0.3)
            engine_copy.write_bytes(engine)

    builder = threading.Thread(target=build)
    builder.start()
    assert torn.wait(30)
    load_engine(engine_copy).close()
    builder.join()


def test_a_disk_that_is_really_full_leaves_nothing(tmp_path: Path) -> None:
    """On an own 64 KiB file system, where mounting is possible."""
    tmp_path = tmp_path / "small"
    tmp_path.mkdir()
    mount = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    script = (
        f"mount -t tmpfs -o size=64k none {tmp_path} && "
        f"{sys.executable} -c '{FULL}' {tmp_path} && ls -A {tmp_path}"
    )
    if (
        shutil.which("unshare") is None
        or subprocess.run([*mount, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no file system can be mounted here")
    done = subprocess.run([*mount, script], capture_output=True, text=True, check=False, timeout=60)
    if "permission denied" in done.stderr:
        pytest.skip("no file system can be mounted here")
    message, _, listed = done.stdout.partition("\n")
    assert "disk or its quota is full" in message, done.stderr
    assert listed.split() == ["old"]


FULL = """
import sys
from pathlib import Path
from qat_lib.engines.files import together
from qat_lib.errors import EngineBuildError
directory = Path(sys.argv[1])
(directory / "old").write_bytes(b"1" * 1000)
try:
    with together(directory / "old") as write:
        write(directory / "a", b"0" * 1000)
        write(directory / "old", b"0" * 200000)
except EngineBuildError as error:
    assert (directory / "old").read_bytes() == b"1" * 1000
    print(error)
"""


BUILDER = """
import sys
from qat_lib.engines import BuildSpec, build_engine, load_engine
onnx, output, seed = sys.argv[1:]
for _ in range(5):
    build_engine(onnx, BuildSpec(backend="onnxruntime", classes=(seed,) * 3), output=output)
    with load_engine(output) as engine:
        engine.infer(engine.random_batch(1))
"""


@pytest.mark.matrix
def test_two_processes_build_the_same_engine(int8_onnx: Path, tmp_path: Path) -> None:
    """Each loads the result after each of its builds.

    Engine and manifest always belong together.
    """
    output = tmp_path / "model.engine"
    command = [sys.executable, "-c", BUILDER, str(int8_onnx), str(output)]
    running = [
        subprocess.Popen([*command, seed], stderr=subprocess.PIPE, text=True) for seed in ("a", "b")
    ]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert read_manifest(output).classes in (("a",) * 3, ("b",) * 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.engine",
        "model.engine.json",
        "model.layers.json",
    ]


# ---------------------------------------------------------------------- what the package drags in
def test_engines_import_no_training_framework(int8_onnx: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from qat_lib.engines import BuildSpec, build_engine, load_engine\n"
        "import qat_lib.engines.check, qat_lib.engines.tensorrt.backend\n"
        "heavy = {'openvino', 'onnxruntime', 'onnx', 'tensorrt', 'cuda.bindings'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "artifact = build_engine(sys.argv[1], BuildSpec(backend='onnxruntime'), output=sys.argv[2])\n"
        "load_engine(artifact.path).close()\n"
        "training = {'tensorflow', 'keras', 'torch', 'kfp', 'mlflow'} & set(sys.modules)\n"
        "assert not training, training\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(int8_onnx), str(tmp_path / "m.engine")],
        check=True,
        timeout=60,
    )


REQUESTS = """
import os, sys
from pathlib import Path
from qat_lib.engines import load_engine

def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")

with load_engine(sys.argv[1]) as engine:
    batches = [engine.random_batch(size)["input"] for size in (1, 4, 8)]
    for index in range(11_500):
        if index == 1500:
            before = resident()
        engine.infer(batches[index // 500 % 3])
    print(resident() - before)
"""


@pytest.mark.matrix_except("onnxruntime")
def test_ten_thousand_requests_leave_memory_flat(built: EngineArtifact) -> None:
    # In a process of its own: what other tests left behind is freed and grows at any time.
    command = [sys.executable, "-c", REQUESTS, str(built.path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300)
    assert int(done.stdout) < 2 * 2**20
