"""Read YAML for configs: plain, bounded, without duplicate keys.

``1e-4`` is a number. A few hundred bytes of YAML can stand for gigabytes, through aliases of
aliases; a nested list can exhaust the stack, and a long number the processor. Sizes are counted
while the document is composed, before anything is built.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from qat_lib.errors import QatlineError
from qat_lib.files.text_files import read_text

LIMIT = 512 << 10
"""Largest document, in bytes. A config has a few thousand."""

_VALUES = 100_000
_DEPTH = 50
_NUMBER = 100  # characters

_TAG = "tag:yaml.org,2002:"
_PLAIN = frozenset(_TAG + name for name in ("null", "bool", "int", "float", "str", "seq", "map"))


class _StrictLoader(yaml.SafeLoader):
    """Bounded safe loader: YAML 1.2 floats, no duplicates, JSON types.

    No other types are taken.
    """

    yaml_constructors = {  # noqa: RUF012 - PyYAML's own way
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag in _PLAIN
    }
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [
            (tag, pattern) for tag, pattern in resolvers if tag in _PLAIN or tag == f"{_TAG}merge"
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._open = 0
        # Number of values and depth of each finished node, what it refers to included.
        self._extent: dict[int, tuple[int, int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        if self._open >= _DEPTH:
            raise _problem(f"expected at most {_DEPTH} levels, received more", self.current_event)
        self._open += 1
        node = super().compose_node(parent, index)
        self._open -= 1
        if node is None:
            return None
        if not is_alias:
            self._extent[id(node)] = self._measured(node)
        elif id(node) not in self._extent:
            raise _problem("expected a value, received one that contains itself", node)
        return node

    def _measured(self, node: yaml.Node) -> tuple[int, int]:
        extents = [self._extent[id(child)] for child in _children(node)]
        values = 1 + sum(values for values, _ in extents)
        depth = 1 + max((depth for _, depth in extents), default=0)
        if values > _VALUES or depth > _DEPTH:
            bound = f"{_VALUES} values" if values > _VALUES else f"{_DEPTH} levels"
            raise _problem(
                f"expected at most {bound}, aliases counted each time, received more", node
            )
        return values, depth

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        # The patterns of numbers take quadratic time on a long row of digits.
        if (
            kind is yaml.ScalarNode
            and implicit[0]
            and len(value) > _NUMBER
            and value[0] in "+-.0123456789"
        ):
            raise _problem(
                f"expected a number of at most {_NUMBER} characters, received {len(value)}; quote "
                "it if text is meant",
                self,
            )
        loader: Any = super()
        return str(loader.resolve(kind, value, implicit))


def _unique_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        # Keys of a merge (<<) may be overridden on purpose.
        if key_node.tag == f"{_TAG}merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise _problem(
                f"expected a text key, received {str(key)[:100]}; quote it if it is meant", key_node
            )
        if key in seen:
            raise _problem(f"the key {key!r} is given twice", key_node)
        seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(f"{_TAG}map", _unique_mapping)
# YAML 1.1 reads 1e-4 as text, because it asks for a dot and a sign.
_StrictLoader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def parse_yaml(text: str, source: str, *, error: type[QatlineError]) -> Any:
    """Parse one YAML document of plain values.

    These are mappings, lists, text, numbers, true, false and null.

    Args:
        text: The document.
        source: What to call it in a message, such as a file's path.
        error: What is raised.

    Raises:
        QatlineError: ``error``: the text is not YAML, holds a key twice, asks for another type, or
            is out of
            proportion: more than 512 KiB, 50 levels, or 100,000 values with aliases counted each
            time.
    """
    if len(text) > LIMIT:
        raise error(
            f"{source}: expected YAML of at most {LIMIT >> 10} KiB, received {len(text) >> 10} KiB."
        )
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - derived from SafeLoader
    except yaml.YAMLError as problem:
        raise error(
            f"{_place(problem, source)}: {getattr(problem, 'problem', None) or problem}"
        ) from problem
    except ValueError as problem:  # such as !!int with text, or a number in base 60 without digits
        raise error(f"{source}: expected YAML: {problem}") from problem


def read_yaml(path: str | Path, *, what: str, error: type[QatlineError]) -> Any:
    """Read a YAML file; see ``parse_yaml``.

    Raises:
        QatlineError: ``error``: the file can't be read, or does not hold such YAML.
    """
    return parse_yaml(read_text(path, what=what, error=error, limit=LIMIT), str(path), error=error)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _problem(text: str, where: Any) -> yaml.MarkedYAMLError:
    mark = where.start_mark if hasattr(where, "start_mark") else where.get_mark()
    return yaml.MarkedYAMLError(problem=text, problem_mark=mark)


def _place(error: yaml.YAMLError, source: str) -> str:
    mark = getattr(error, "problem_mark", None)
    return (
        f"{source}, line {mark.line + 1}, column {mark.column + 1}" if mark is not None else source
    )
