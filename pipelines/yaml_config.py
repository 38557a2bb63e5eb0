"""Read YAML the way a config wants it: safe, no key twice, ``1e-4`` is a number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from qat_lib.errors import ConfigError


class _StrictLoader(yaml.SafeLoader):
    """The safe loader, with YAML 1.2 floats and without silent duplicates."""


def _unique_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        # Keys of a merge (<<) may be overridden on purpose.
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(
                None, None, f"expected a text key, received {key!r}; quote it if it is meant", key_node.start_mark
            )
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _unique_mapping)
# YAML 1.1 reads 1e-4 as text, because it asks for a dot and a sign.
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def parse_yaml(text: str, source: str) -> Any:
    """Parse one YAML document.

    Args:
        text: The document.
        source: What to call it in a message, such as a file's path.

    Raises:
        ConfigError: The text is not YAML, holds a key twice, or asks for a Python object.
    """
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - derived from SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError(f"{_place(error, source)}: {_problem(error)}") from error


def read_yaml_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping (an empty file is an empty mapping).

    Raises:
        ConfigError: The file can't be read, is not YAML, or holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"Expected a config file at {path}; there is none. Check the path.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Could not read the config file {path}: {error}") from error
    content = parse_yaml(text, str(path))
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a mapping such as 'training: {{epochs: 5}}', received {_kind(content)}.")
    return content


def _place(error: yaml.YAMLError, source: str) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"{source}, line {mark.line + 1}, column {mark.column + 1}" if mark is not None else source


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or error)


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else repr(value)
