"""Read YAML for configs: plain values, no duplicate keys, ``1e-4`` is a number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from qat_lib.errors import QatlineError
from qat_lib.files.text_files import read_text

LIMIT = 512 << 10
"""Largest document, in bytes. A config has a few thousand."""

_TAG = "tag:yaml.org,2002:"
_PLAIN = frozenset(_TAG + name for name in ("null", "bool", "int", "float", "str", "seq", "map"))


class _StrictLoader(yaml.SafeLoader):
    """Safe loader of JSON types; dates remain text."""

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
    # After the check: flattening copies merged keys into the node, like duplicates.
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(f"{_TAG}map", _unique_mapping)
# YAML 1.1 reads 1e-4 as text, because it asks for a dot and a sign.
_StrictLoader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(r"^[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def parse_yaml(text: str, source: str, *, error: type[QatlineError]) -> Any:
    """Parse one YAML document of mappings, lists, text, numbers, true, false and null.

    Args:
        text: the document.
        source: name of the document in messages, such as the path of a file.
        error: class of the raised exception.

    Raises:
        QatlineError: as ``error``: the text is not YAML, repeats a key, uses another type, is
            nested too deeply, or exceeds 512 KiB.
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
    except RecursionError as problem:
        raise error(f"{source}: received YAML that is nested too deeply.") from problem
    except ValueError as problem:  # such as !!int with text, or a number of 5,000 digits
        raise error(f"{source}: expected YAML: {problem}") from problem


def read_yaml(path: str | Path, *, what: str, error: type[QatlineError]) -> Any:
    """Read a YAML file; see ``parse_yaml``.

    Raises:
        QatlineError: as ``error``: the file can't be read, or ``parse_yaml`` rejects it.
    """
    return parse_yaml(read_text(path, what=what, error=error, limit=LIMIT), str(path), error=error)


def _problem(text: str, where: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=where.start_mark)


def _place(error: yaml.YAMLError, source: str) -> str:
    mark = getattr(error, "problem_mark", None)
    return (
        f"{source}, line {mark.line + 1}, column {mark.column + 1}" if mark is not None else source
    )
