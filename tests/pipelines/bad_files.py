"""Bad files: damaged, of another kind, endless, or no files."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

Damage = Callable[[bytes], bytes]
Make = Callable[[Path], None]

# What every reader must refuse, whatever it reads.
DAMAGES: dict[str, Damage] = {
    "empty": lambda _: b"",
    "one_byte": lambda data: data[:1],
    "first_tenth": lambda data: data[: len(data) // 10],
    "half": lambda data: data[: len(data) // 2],
    "text": lambda _: b"hello, this is some text\n",
    "not_utf8": lambda _: b"\xff\xfe\x00\xd8" * 20,
    "zeros": lambda data: bytes(len(data)),
    "swapped_halves": lambda data: data[len(data) // 2 :] + data[: len(data) // 2],
    "reversed": lambda data: data[::-1],
    "html": lambda _: b"<!DOCTYPE html><html><body>404</body></html>",
    "deep_json": lambda _: b"[" * 200_000,
    "deep_object": lambda _: b'{"a":' * 100_000,
    "long_integer": lambda _: b"9" * 50_000,
    "elf": lambda _: Path("/proc/self/exe").read_bytes()[:100_000],
}


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_null(path: Path) -> None:
    path.symlink_to("/dev/null")


def make_folder(path: Path) -> None:
    path.mkdir()


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


def make_dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's address is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def make_sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(100 << 30)


def make_missing(path: Path) -> None:
    del path


PLACES: dict[str, Make] = {
    "pipe": make_pipe,
    "device": make_device,
    "null": make_null,
    "folder": make_folder,
    "loop": make_loop,
    "dangling": make_dangling,
    "socket": make_socket,
    "sparse": make_sparse,
    "missing": make_missing,
}


def writer(content: bytes) -> Make:
    return lambda path: path.write_bytes(content) and None


def unusable(data: bytes) -> Iterator[tuple[str, Make]]:
    """Yield what can't be read as ``data`` could, whatever reads it."""
    for name, damage in DAMAGES.items():
        yield name, writer(damage(data))
    yield from PLACES.items()


def flipped(data: bytes, random: Random, count: int) -> Iterator[tuple[str, Make]]:
    """Yield copies with a few bits flipped, which may be harmless."""
    for index in range(count):
        copy = bytearray(data)
        for _ in range(random.choice((1, 1, 3, 20))):
            # Headers and directories lie at the ends.
            span = random.choice((len(copy), min(200, len(copy))))
            place = random.randrange(span)
            place = place if random.random() < 0.6 else len(copy) - 1 - place
            copy[place] ^= 1 << random.randrange(8)
        yield f"flipped_{index}", writer(bytes(copy))


_VALUES: tuple[Any, ...] = (None, True, -1, 10**400, 1.5, "x", "", [], {}, [[]], {"a": 1})


def altered(data: bytes, random: Random, count: int) -> Iterator[tuple[str, Make]]:
    """Yield JSON with one value retyped or removed; it may be harmless."""
    for index in range(count):
        content = json.loads(data)
        place, key = random.choice(list(_places(content)))
        if random.random() < 0.2:
            del place[key]
        else:
            place[key] = random.choice(_VALUES)
        yield f"altered_{index}", writer(json.dumps(content).encode())


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = (
        value.keys()
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else ()
    )
    for key in keys:
        yield value, key
        yield from _places(value[key])
