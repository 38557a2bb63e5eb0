"""Intact files with bad contents, and bad arguments.

The contents are wrong shapes and types, NaN, bombs and lies.
"""

import io
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bad_files import Make, make_device, make_pipe, writer


@dataclass(frozen=True, kw_only=True)
class Content:
    """A bad content of one file, and the ``commands`` that refuse it.

    No commands stands for all of them.
    """

    file: str
    name: str
    make: Make
    commands: tuple[str, ...] = ()


def contents(good: Path) -> Iterator[Content]:
    """Yield the bad contents of all kinds of files."""
    yield from _arrays()
    yield from _datasets()
    yield from _models((good / "model.keras").read_bytes())
    yield from _texts()


def npy(array: Any) -> bytes:
    """Return the bytes of a ``.npy`` file."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def header(descr: Any, shape: tuple[Any, ...]) -> bytes:
    """Return a ``.npy`` header without an array."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


def _arrays() -> Iterator[Content]:
    x = np.zeros((4, 8, 8, 3), np.float32)
    arrays: dict[str, bytes] = {
        "wrong_shape": npy(x[..., :2]),
        "scalar": npy(np.float32(1)),
        "vector": npy(np.zeros(5, np.float32)),
        "no_samples": npy(x[:0]),
        "text": npy(np.full(x.shape, "a")),
        "complex": npy(x.astype(np.complex64)),
        "dates": npy(np.zeros(x.shape, "M8[s]")),
        "records": npy(np.zeros(x.shape, [("a", "f4")])),
        "nan": npy(np.full_like(x, np.nan)),
        "infinite": npy(np.full_like(x, np.inf)),
        "huge_header": header("<f4", (10**12, 8, 8, 3)),
        "beyond_64_bits": header("<f4", (2**70, 8, 8, 3)),
        "negative": header("<f4", (-4, 8, 8, 3)),
        "objects": header("|O", (4, 8, 8, 3)),
        "nothing_wide": header("|V0", (4, 8, 8, 3)),
        "cut_short": npy(x)[:-1],
        "archive": npz({"x": x}),
        "version_9": b"\x93NUMPY\x09\x00" + npy(x)[8:],
        "long_header": b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100),
        "python_2": b"\x93NUMPY\x01\x00\x05\x00(L)\n\n",
    }
    for name, content in arrays.items():
        # NaN and infinity are compared with Keras's own, which also gives NaN.
        commands = ("quantize", "diagnose", "search") if name in ("nan", "infinite") else ()
        yield Content(file="x.npy", name=name, make=writer(content), commands=commands)
        if name not in ("nan", "infinite", "wrong_shape"):
            yield Content(file="dataset/train_x.npy", name=name, make=writer(content))
            yield Content(file="dataset/train_y.npy", name=name, make=writer(content))


def npz(arrays: dict[str, Any], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a ``.npz`` file's bytes; an array may be raw member bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", array if isinstance(array, bytes) else npy(array))
    return stream.getvalue()


def _bomb(path: Path) -> None:
    """Write an archive of 2 MB that unpacks to 2 GB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as member:
            member.write(header("|u1", (2_000, 1024, 1024, 1)))
            block = bytes(1 << 20)
            for _ in range(2_000):
                member.write(block)
        archive.writestr("y.npy", npy(np.arange(2_000) % 2))


def _datasets() -> Iterator[Content]:
    x, y = np.zeros((40, 8, 8, 3), np.uint8), np.arange(40) % 2
    floats = x.astype(np.float32)
    sets: dict[str, bytes] = {
        "no_labels": npz({"x": x}),
        "no_arrays": npz({}),
        "other_names": npz({"a": x, "b": y}),
        "lengths": npz({"x": x, "y": y[:-1]}),
        "nan": npz({"x": np.full_like(floats, np.nan), "y": y}),
        "infinite": npz({"x": np.full_like(floats, -np.inf), "y": y}),
        "nan_labels": npz({"x": x, "y": np.full(40, np.nan)}),
        "one_class": npz({"x": x, "y": y * 0}),
        "negative_labels": npz({"x": x, "y": y - 5}),
        "huge_labels": npz({"x": x, "y": y * 2**40}),
        "one_hot": npz({"x": x, "y": np.eye(2)[y]}),
        "text": npz({"x": x, "y": y.astype("U3")}),
        "complex": npz({"x": x.astype(np.complex64), "y": y}),
        "integers": npz({"x": x.astype(np.int16), "y": y}),
        "objects": npz({"x": header("|O", (40, 8, 8, 3)), "y": y}),
        "huge_header": npz({"x": header("|u1", (10**12, 8, 8, 3)), "y": y}),
        "negative": npz({"x": header("|u1", (-40, 8, 8, 3)), "y": y}),
        "flat": npz({"x": x.reshape(40, -1), "y": y}),
        "channels_first": npz({"x": np.zeros((40, 3, 8, 8), np.uint8), "y": y}),
        "no_width": npz({"x": x[:, :, :0], "y": y}),
        "no_samples": npz({"x": x[:0], "y": y[:0]}),
        "bzip2": npz({"x": x, "y": y}, zipfile.ZIP_BZIP2),
        "lzma": npz({"x": x, "y": y}, zipfile.ZIP_LZMA),
        "members_are_text": npz({"x": b"hello", "y": b"world"}),
        "empty_members": npz({"x": b"", "y": b""}),
    }
    for name, content in sets.items():
        yield Content(file="data.npz", name=name, make=writer(content))
        yield Content(file="weights.npz", name=name, make=writer(content))
    yield Content(file="data.npz", name="bomb", make=_bomb)
    yield Content(file="weights.npz", name="bomb", make=_bomb)


Edit = Callable[[bytes], bytes]


def _edited(model: bytes, member: str, edit: Edit, compression: int = zipfile.ZIP_STORED) -> Make:
    def make(path: Path) -> None:
        with (
            zipfile.ZipFile(io.BytesIO(model)) as source,
            zipfile.ZipFile(path, "w", compression) as target,
        ):
            members = {name: source.read(name) for name in source.namelist()}
            members[member] = edit(members.get(member, b""))
            for name, content in members.items():
                target.writestr(name, content)

    return make


def _with_dataset(**options: Any) -> Edit:
    def edit(content: bytes) -> bytes:
        import h5py

        stream = io.BytesIO(content)
        with h5py.File(stream, "r+") as file:
            file.create_dataset("more", **options)
        return stream.getvalue()

    return edit


def _models(model: bytes) -> Iterator[Content]:
    config, weights = "config.json", "model.weights.h5"
    edits: dict[str, tuple[str, Edit]] = {
        "bad_config": (config, lambda _: b"{"),
        "no_config": (config, lambda _: b""),
        "list_config": (config, lambda _: b"[]"),
        "no_model": (config, lambda _: b'{"config": {}}'),
        "deep_config": (config, lambda _: b"[" * 300_000),
        "not_utf8": (config, lambda _: b"\xff\xfe"),
        "bad_weights": (weights, lambda w: w[: len(w) // 2]),
        "no_weights": (weights, lambda _: b""),
        "text_weights": (weights, lambda _: b"hello"),
        "many_weights": (
            weights,
            _with_dataset(shape=(10**10,), chunks=(10**6,), dtype="f4", compression="gzip"),
        ),
        "wide_chunk": (
            weights,
            _with_dataset(shape=(1,), maxshape=(None,), chunks=(10**9,), dtype="f4"),
        ),
        "outside": (
            weights,
            _with_dataset(shape=(9,), dtype="f4", external=[("/etc/passwd", 0, 36)]),
        ),
    }
    for name, (member, edit) in edits.items():
        # Where only the weights are read, the configuration may be any.
        commands = ("quantize", "diagnose", "export") if member == config else ()
        yield Content(
            file="model.keras", name=name, make=_edited(model, member, edit), commands=commands
        )
    bomb = _edited(model, "assets/x", lambda _: bytes(700 << 20), zipfile.ZIP_DEFLATED)
    yield Content(file="model.keras", name="bomb", make=bomb, commands=("quantize",))
    values = (f"{10**12}", "-1", "0", '"x"', "null", "NaN", "1e300", "9" * 5_000, "[]", "true")
    for key in (b'"units": 2', b'"filters": 4'):
        for value in values:
            edit = _replaced(key, key.split(b" ")[0] + value.encode())
            make = _edited(model, config, edit)
            # As weights, only the values in the file count.
            yield Content(
                file="model.keras",
                name=f"{key!r} {value:.12}",
                make=make,
                commands=("quantize", "diagnose", "export"),
            )
    for old, new in (
        (b'"class_name": "Dense"', b'"class_name": "Dence"'),
        (b'"module": "keras.layers"', b'"module": "os"'),
        (b'"class_name": "Functional"', b'"class_name": "Dense"'),
        (b'"keras_history": [', b'"keras_history": [7, '),
        (b'"inbound_nodes": [{', b'"inbound_nodes": [[{'),
        (b'"float32"', b'"float33"'),
        (b'"batch_shape": [null, 8, 8, 3]', b'"batch_shape": [null, -8, 8, 3]'),
        (b'"kernel_size": [3, 3]', b'"kernel_size": [30000, 30000]'),
        (b'"GlorotUniform"', b'"RandomNormal2"'),
    ):
        make = _edited(model, config, _replaced(old, new))
        yield Content(
            file="model.keras",
            name=repr(new),
            make=make,
            commands=("quantize", "diagnose", "export"),
        )


def _replaced(old: bytes, new: bytes) -> Edit:
    return lambda content: content.replace(old, new)


def _texts() -> Iterator[Content]:
    specs = {
        "mapping": "a: 1",
        "number": "5",
        "unknown_key": "- name: logits\n  quantise: true",
        "no_name": "- quantize_input: false",
        "name_is_a_list": "- name: [a, b]",
        "bits": "- name: logits\n  num_bits: 99",
        "bits_text": "- name: logits\n  num_bits: many",
        "index": "- name: logits\n  quantization_index: [-1]",
        "regex": "- name: '('\n  is_regex: true",
        "class": "- name: Dence\n  is_keras_class: true",
        "calibrator": "- name: logits\n  calibrator: best",
        "python": "- !!python/object/apply:os.system ['true']",
        "tab": "- name:\n\t- x",
        "alias_list": "- &a [x]\n"
        + "".join(f"- &b{i} [{', '.join(['*a'] * 9)}]\n" for i in range(3)),
        "deep": "[" * 20_000,
        "deep_block": "".join(" " * i + "a:\n" for i in range(3_000)),
        "long_integer": "- name: logits\n  num_bits: " + "9" * 5_000,
    }
    for name, text in specs.items():
        yield Content(file="spec.yaml", name=name, make=writer(text.encode()))
    configs = {
        "list": "[1]",
        "unknown_key": "trainig: {epochs: 1}",
        "section_is_a_number": "training: 5",
        "type": "training: {epochs: many}",
        "range": "training: {epochs: -1}",
        "nan": "training: {learning_rate: .nan}",
        "duplicate": "seed: 1\nseed: 2",
        "python": "seed: !!python/object/apply:os.system ['true']",
        "deep": "model: {options: " + "[" * 20_000,
        "long_integer": "seed: " + "9" * 5_000,
    }
    for name, text in configs.items():
        yield Content(file="config.yaml", name=name, make=writer(text.encode()))
    plans = {
        "number": "5",
        "text": '"x"',
        "list": "[]",
        "null": "null",
        "version": '{"version": 99}',
        "no_quantizers": '{"version": 1, "model": "m", "mode": "full"}',
        "not_finite": '{"version": NaN}',
        "quantizers_number": '{"version": 1, "model": "m", "mode": "full", "quantizers": 5, "skipped": []}',
        "quantizers_of_text": '{"version": 1, "model": "m", "mode": "full", "quantizers": ["x"], "skipped": []}',
    }
    for name, text in plans.items():
        yield Content(file="plan.json", name=name, make=writer(text.encode()))
        yield Content(file="layers.json", name=name, make=writer(text.encode()))
        yield Content(file="dataset/preprocessing.json", name=name, make=writer(text.encode()))
        yield Content(file="dataset/dataset.json", name=name, make=writer(text.encode()))
        yield Content(file="model.engine.json", name=name, make=writer(text.encode()))


def folders() -> Iterator[tuple[str, Make]]:
    """Yield what can be wrong with a folder of images."""

    def parent(root: Path) -> None:
        (root / "cat" / "loop").symlink_to("..")

    def itself(root: Path) -> None:
        (root / "cat" / "loop").symlink_to(".")

    def everything(root: Path) -> None:
        (root / "cat" / "loop").symlink_to("/")

    def sibling(root: Path) -> None:
        (root / "cat" / "more").symlink_to("../dog")

    def same_file(root: Path) -> None:
        os.link(root / "dog" / "000.png", root / "cat" / "x.png")

    def pipe(root: Path) -> None:
        make_pipe(root / "cat" / "x.png")

    def device(root: Path) -> None:
        make_device(root / "cat" / "x.jpg")

    def bomb(root: Path) -> None:
        from PIL import Image

        Image.new("L", (20_000, 9_000)).save(root / "cat" / "x.png")

    def deep(root: Path) -> None:
        (root / "cat" / "/".join(["d"] * 200)).mkdir(parents=True)

    def odd_name(root: Path) -> None:
        (root / "cat" / os.fsdecode(b"\xff.png")).write_bytes(b"")

    def postscript(root: Path) -> None:
        (root / "cat" / "x.png").write_bytes(
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"
        )

    def no_class(root: Path) -> None:
        for path in (root / "dog").iterdir():
            path.unlink()

    for make in (
        parent, itself, everything, sibling, same_file, pipe, device, bomb, deep, odd_name, postscript, no_class
    ):  # fmt: skip
        yield make.__name__, make
