"""A strict fake of the ``tensorrt`` module.

It is generated from a snapshot of the real bindings' API surface. What the snapshot does not list
does not exist here: unknown names, wrong argument counts, keywords and types, writes to read-only
properties, and integers in place of enums are errors, as with the real bindings. What the methods
do is scripted by the test (``Script.behaviours``); a method without a script returns an object of
its declared type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
VERSIONS = ("8.6", "10.16", "11.4")


def load_snapshot(version: str) -> dict[str, Any]:
    """Return the committed snapshot of a version."""
    return dict(json.loads((SNAPSHOTS / f"tensorrt_{version}.json").read_text()))


@dataclass
class Script:
    """What the fake does and what was done to it.

    Args:
        behaviours: by ``Class.method``: called with the object and the arguments, its result is
            returned.
        calls: ``Class.method`` of every call and ``Class.property=`` of every write, in order.
    """

    behaviours: dict[str, Callable[..., Any]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)


def make_fake(version: str, script: Script) -> Any:
    """Return a module with ``version``'s API surface and ``script``'s behaviour."""
    return _Generator(load_snapshot(version), script).module


class _EnumMember:
    """A pybind11 enum member: it has a number but is none.

    ``1 << member`` and ``member == 0`` don't work.
    """

    def __init__(self, kind: str, name: str, value: int) -> None:
        self.kind, self.name, self._value = kind, name, value

    def __int__(self) -> int:
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _EnumMember) and (self.kind, self._value) == (
            other.kind,
            other._value,
        )

    def __hash__(self) -> int:
        return hash((self.kind, self._value))

    def __repr__(self) -> str:
        return f"<{self.kind}.{self.name}: {self._value}>"


class _Generator:
    def __init__(self, snapshot: dict[str, Any], script: Script) -> None:
        self._snapshot, self._script = snapshot, script
        self.module = ModuleType("tensorrt")
        self.module.__dict__["__version__"] = snapshot["version"]
        for name, members in snapshot["enums"].items():
            setattr(self.module, name, self._enum(name, members))
        for name in snapshot["classes"]:
            self._class(name)

    def _enum(self, name: str, members: dict[str, int]) -> type:
        body = {member: _EnumMember(name, member, value) for member, value in members.items()}
        return type(name, (), {**body, "__members__": body})

    def _class(self, name: str) -> type:
        made = getattr(self.module, name, None)
        if made is not None:
            return made  # type: ignore[no-any-return]
        surface = self._snapshot["classes"][name]
        bases = tuple(self._class(base) for base in surface.get("bases", [])[:1])
        # The buffer protocol, which a Python class can't offer before 3.12.
        if name == "IHostMemory":
            bases = (bytes,)
        body: dict[str, Any] = {"_surface": name}
        for member, settable in surface.get("properties", {}).items():
            body[member] = self._property(name, member, settable)
        for enum, members in surface.get("enums", {}).items():
            body[enum] = self._enum(f"{name}.{enum}", members)
        for method, overloads in surface.get("methods", {}).items():
            if not method.startswith("__"):
                body[method] = self._method(name, method, overloads)
        if name != "IHostMemory":
            body["__init__"] = self._constructor(
                name, surface.get("methods", {}).get("__init__", [])
            )
            body["__setattr__"] = _guarded_setattr
        if name == "Dims":
            body["__iter__"] = lambda dims: iter(dims.__dict__["arguments"][0])
            body["__len__"] = lambda dims: len(dims.__dict__["arguments"][0])
        made = type(name, bases, body)
        setattr(self.module, name, made)
        return made

    def _constructor(self, name: str, overloads: list[dict[str, Any]]) -> Callable[..., None]:
        def construct(this: Any, *arguments: Any) -> None:
            self._check(f"{name}.__init__", overloads, arguments)
            this.__dict__.update(constructed=True, arguments=arguments)
            self._script.calls.append(name)
            behaviour = self._script.behaviours.get(name)
            if behaviour is not None:
                behaviour(this, *arguments)

        return construct

    def _property(self, owner: str, name: str, settable: bool) -> property:
        def read(this: Any) -> Any:
            behaviour = self._script.behaviours.get(f"{owner}.{name}")
            return behaviour(this) if behaviour is not None else this.__dict__.get(f"_{name}")

        def write(this: Any, value: Any) -> None:
            self._script.calls.append(f"{owner}.{name}=")
            this.__dict__[f"_{name}"] = value

        return property(read, write if settable else None)

    def _method(self, owner: str, name: str, overloads: list[dict[str, Any]]) -> Callable[..., Any]:
        def call(this: Any, *arguments: Any, **keywords: Any) -> Any:
            key = f"{owner}.{name}"
            overload = self._check(key, overloads, arguments, keywords)
            self._script.calls.append(key)
            behaviour = self._script.behaviours.get(key)
            if behaviour is not None:
                return behaviour(this, *arguments, **keywords)
            return self._default(overload["returns"] if overload else "None")

        return call

    def _check(
        self,
        key: str,
        overloads: list[dict[str, Any]],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any] | None = None,
    ) -> dict[str, Any] | None:
        """Return the overload for the arguments, else raise pybind11's TypeError."""
        if not overloads and not arguments and not keywords:
            return None
        for overload in overloads:
            if self._fits(overload["parameters"][1:], arguments, keywords or {}):
                return overload
        shown = [
            [f"{name}: {kind}" for name, kind, *_ in overload["parameters"]]
            for overload in overloads
        ]
        raise TypeError(
            f"{key}(): incompatible function arguments {arguments} {keywords or ''}; supported: {shown}"
        )

    def _fits(
        self, parameters: list[list[str]], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> bool:
        names = [parameter[0] for parameter in parameters]
        given = dict(zip(names, arguments, strict=False))
        if (
            len(arguments) > len(parameters)
            or set(keywords) - set(names)
            or set(keywords) & set(given)
        ):
            return False
        given |= keywords
        required = {parameter[0] for parameter in parameters if len(parameter) == 2}
        kinds = {parameter[0]: parameter[1] for parameter in parameters}
        return required <= set(given) and all(
            self._is(value, kinds[name]) for name, value in given.items()
        )

    def _is(self, value: Any, kind: str) -> bool:
        kind = re.sub(
            r"\bnv(infer1|onnxparser)::I?|typing(_extensions)?\.|collections\.abc\.", "", kind
        )
        if kind in ("int", "SupportsInt"):
            return isinstance(value, int) and not isinstance(value, bool)
        if kind in ("float", "SupportsFloat"):
            return isinstance(value, int | float)
        if kind in ("buffer", "Buffer"):
            return isinstance(value, bytes | bytearray | memoryview)
        if kind.startswith(("List[int]", "list[int]", "Sequence[")):
            return isinstance(value, list | tuple) and all(isinstance(item, int) for item in value)
        simple = {"str": str, "bool": bool, "tuple": tuple, "list": list, "object": object}
        if kind in simple:
            return isinstance(value, simple[kind])
        if isinstance(value, _EnumMember):
            return value.kind in (kind, kind.replace("::", "."))
        made = getattr(self.module, kind, None)
        # A Python subclass that forgot to call the base's __init__ is refused by pybind11 too.
        return (
            made is not None
            and isinstance(value, made)
            and value.__dict__.get("constructed", made is bytes)
        )

    def _default(self, kind: str) -> Any:
        kind = re.sub(r"\bnv(infer1|onnxparser)::", "", kind)
        simple = {"None": None, "bool": True, "int": 0, "str": "", "float": 0.0}
        if kind in simple:
            return simple[kind]
        for name in (kind, kind.removeprefix("I")):
            if name in self._snapshot["classes"]:
                return self.make(name)
        return None

    def make(self, name: str) -> Any:
        """Return an object of a class that has no public constructor."""
        made = getattr(self.module, name)
        if name == "IHostMemory":
            return made(b"")
        made = made.__new__(made)
        made.__dict__.update(constructed=True, arguments=())
        return made


def _guarded_setattr(this: Any, name: str, value: Any) -> None:
    """Allow writing known properties only.

    A Python subclass may have attributes of its own, as with pybind11.
    """
    kind = type(this)
    described = getattr(kind, name, None)
    if isinstance(described, property):
        if described.fset is None:
            raise AttributeError(f"property '{name}' of '{kind.__name__}' object has no setter")
        described.fset(this, value)
    elif "_surface" in vars(kind):
        raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")
    else:
        this.__dict__[name] = value
