#!/usr/bin/env python3
"""Write the TensorRT Python API surface without TensorRT or a GPU.

A bindings wheel holds one extension module. It needs NVIDIA's libraries by name, but takes only a
few C functions from them, the factories that the public headers declare (NvInfer*.h,
NvOnnxParser.h). This script unpacks the extension into a temporary directory, puts an empty library
in place of each of NVIDIA's (every function returns NULL), imports the extension in a child
process, and writes classes, methods with parameter names and types, properties and enum members as
JSON. Docstrings and binaries are not kept: the wheels' licence forbids passing them on.

    python scripts/trt_api_snapshot.py make WHEEL [-o FILE]   write the snapshot of one wheel
    python scripts/trt_api_snapshot.py diff OLD.json NEW.json print what differs between two snapshots

Needs the CPython version of the wheel's tag (3.10 for 8.6, 3.11 for 10 and 11 as pinned in the
tests), gcc and binutils. The wheels come from ``pip download --no-deps`` of
tensorrt-cu12-bindings==10.16.1.11, tensorrt-cu13-bindings==11.4.0.106 and tensorrt==8.6.0.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

Surface = dict[str, Any]

_NEEDED = re.compile(r"\(NEEDED\).*\[(libnv[^\]]+)\]")
_SIGNATURE = re.compile(r"^(?:\d+\. )?\w+\((?P<parameters>.*)\) -> (?P<returns>.+)$")
_MODULE_PREFIX = re.compile(r"\btensorrt(?:_bindings)?\.tensorrt\.")
_SPECIAL = ("__init__", "__len__", "__getitem__")


# ---------------------------------------------------------------------- the wheel and its stubs
def make_snapshot(wheel: Path) -> Surface:
    """Return the API surface of a bindings wheel."""
    with tempfile.TemporaryDirectory(prefix="trt-snapshot-") as name:
        root = Path(name)
        extension = _unpack(wheel, root)
        stubs = _compile_stubs(extension, root)
        command = [sys.executable, __file__, "_describe", str(extension), *map(str, stubs)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"importing the bindings failed:\n{done.stderr}")
    return {"version": wheel.name.split("-")[1], **json.loads(done.stdout)}


def _unpack(wheel: Path, root: Path) -> Path:
    """Unpack only the extension module.

    NVIDIA's own libraries, where a wheel holds them, stay where they are.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = [
            name
            for name in archive.namelist()
            if re.fullmatch(r"tensorrt[^/]*/tensorrt[^/]*\.so", name)
        ]
        if len(names) != 1:
            raise SystemExit(f"{wheel.name}: expected one extension module, found {names}")
        return Path(archive.extract(names[0], root))


def _compile_stubs(extension: Path, root: Path) -> list[Path]:
    """Compile a stub of each NVIDIA library the extension needs.

    The first one defines every function.
    """
    sonames = _NEEDED.findall(_output("readelf", "-dW", str(extension)))
    functions = "".join(
        f"void *{name}(void) {{ return 0; }}\n" for name in _missing_functions(extension)
    )
    made = []
    for index, soname in enumerate(sonames):
        source, library = root / f"{soname}.c", root / soname
        source.write_text(functions if index == 0 else "typedef int nothing;\n")
        _output("gcc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", str(library), str(source))
        made.append(library)
    return made


def _missing_functions(extension: Path) -> list[str]:
    """Return the undefined functions missing from interpreter and C++ runtime."""
    known = [
        ctypes.CDLL(None),
        ctypes.CDLL("libstdc++.so.6"),
        ctypes.CDLL("libm.so.6"),
        ctypes.CDLL("libgcc_s.so.1"),
    ]
    found = []
    for line in _output("nm", "-D", "--undefined-only", str(extension)).splitlines():
        kind, name = line.split()[-2:]
        if kind == "U" and "@" not in name and not any(hasattr(library, name) for library in known):
            found.append(name)
    return sorted(found)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


# ---------------------------------------------------------------------- runs in the child process
def _describe(extension: Path, stubs: list[str]) -> Surface:
    """Import the extension over the stubs and describe it."""
    for stub in stubs:
        ctypes.CDLL(stub, mode=ctypes.RTLD_GLOBAL)
    spec = importlib.util.spec_from_file_location("tensorrt_bindings.tensorrt", extension)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{extension} is no extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    surface: Surface = {"enums": {}, "classes": {}, "functions": {}}
    for name in sorted(vars(module)):
        value = getattr(module, name)
        if name.startswith("_"):
            continue
        if isinstance(value, type) and hasattr(value, "__members__"):
            surface["enums"][name] = {
                member: int(item) for member, item in value.__members__.items()
            }
        elif isinstance(value, type) and value.__module__.startswith("tensorrt"):
            surface["classes"][name] = _class_surface(value)
        elif callable(value) and not isinstance(value, type):
            surface["functions"][name] = _signatures(value.__doc__)
    try:
        module.Builder(module.Logger())
    except TypeError as error:
        surface["null_builder"] = f"TypeError: {error}"
    return surface


def _class_surface(kind: type) -> Surface:
    found: Surface = {
        "bases": [
            base.__name__ for base in kind.__mro__[1:] if base.__module__.startswith("tensorrt")
        ]
    }
    found |= {"methods": {}, "properties": {}, "enums": {}}
    for name, raw in sorted(vars(kind).items()):
        value = getattr(kind, name)
        if name.startswith("_") and name not in _SPECIAL:
            continue
        if isinstance(raw, property):
            found["properties"][name] = raw.fset is not None
        elif isinstance(value, type) and hasattr(value, "__members__"):
            found["enums"][name] = {member: int(item) for member, item in value.__members__.items()}
        elif callable(value):
            found["methods"][name] = _signatures(value.__doc__)
        # Members of the enum are repeated as attributes of the outer class.
        elif hasattr(type(value), "__members__"):
            found.setdefault("members", []).append(name)
    return {key: value for key, value in found.items() if value}


def _signatures(text: str | None) -> list[Surface]:
    """Read the overloads that pybind11 wrote into a docstring."""
    found = []
    for line in (text or "").splitlines():
        match = _SIGNATURE.match(line.strip())
        if match and match["parameters"] != "*args, **kwargs":
            found.append(
                {
                    "parameters": _parameters(match["parameters"]),
                    "returns": _MODULE_PREFIX.sub("", match["returns"]),
                }
            )
    return found


def _parameters(text: str) -> list[list[str]]:
    """Split a parameter list into [name, type] or [name, type, default].

    It is split at the commas outside of brackets.
    """
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "[(<{") - (character in "])>}")
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    parts += [current] if current.strip() else []
    found = []
    for part in parts:
        head, equals, default = part.strip().partition(" = ")
        name, _, kind = head.partition(": ")
        found.append([name, _MODULE_PREFIX.sub("", kind), *([default] if equals else [])])
    return found


# ---------------------------------------------------------------------- output
def dump(surface: Surface) -> str:
    """Return a snapshot as JSON with one entity per line.

    A class, enum or function a line makes differences read well.
    """
    lines = ["{", f' "version": {json.dumps(surface["version"])},']
    lines.append(f' "null_builder": {json.dumps(surface.get("null_builder"))},')
    sections = []
    for section in ("enums", "classes", "functions"):
        rows = [
            f"  {json.dumps(name)}: {json.dumps(value)}"
            for name, value in sorted(surface[section].items())
        ]
        sections.append(f' "{section}": {{\n' + ",\n".join(rows) + "\n }")
    return "\n".join([*lines, ",\n".join(sections), "}"]) + "\n"


def differences(old: Surface, new: Surface) -> list[str]:
    """Return one line per difference.

    ``-`` is only in ``old``, ``+`` only in ``new``, ``~`` changed.
    """
    before, after = _flat(old), _flat(new)
    lines = []
    for name in sorted(set(before) | set(after)):
        if name not in after or name not in before:
            lines.append(f"{'-' if name in before else '+'} {name}")
        elif before[name] != after[name]:
            lines.append(f"~ {name}: {json.dumps(before[name])} -> {json.dumps(after[name])}")
    return lines


def _flat(surface: Surface) -> dict[str, Any]:
    flat = {
        f"{name}.{member}": value
        for name, enum in surface["enums"].items()
        for member, value in enum.items()
    }
    flat |= surface["functions"]
    for name, kind in surface["classes"].items():
        flat[name] = kind.get("bases", [])
        for part in ("methods", "properties", "enums"):
            flat |= {f"{name}.{member}": value for member, value in kind.get(part, {}).items()}
    return flat


def main(arguments: list[str]) -> int:
    """Run the command line."""
    if arguments[:1] == ["_describe"]:
        json.dump(_describe(Path(arguments[1]), arguments[2:]), sys.stdout)
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make", help="write the snapshot of one wheel")
    make.add_argument("wheel", type=Path)
    make.add_argument("-o", "--output", type=Path)
    compare = commands.add_parser("diff", help="print what differs between two snapshots")
    compare.add_argument("old", type=Path)
    compare.add_argument("new", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "diff":
        lines = differences(
            json.loads(options.old.read_text()), json.loads(options.new.read_text())
        )
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        return 0
    text = dump(make_snapshot(options.wheel))
    if options.output:
        options.output.write_text(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
