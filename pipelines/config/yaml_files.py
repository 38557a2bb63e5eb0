"""Parser of the YAML in config files and ``--set`` values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qat_lib.errors import ConfigError
from qat_lib.files.strict_yaml import parse_yaml, read_yaml


def parse_config(text: str, source: str) -> Any:
    """Parse one YAML document.

    Args:
        text: the document.
        source: name of the document for messages, such as an option.

    Raises:
        ConfigError: the text is not YAML of plain values, or is excessively large.
    """
    return parse_yaml(text, source, error=ConfigError)


def read_yaml_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file with a top-level mapping or no content.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or contains another type.
    """
    content = read_yaml(path, what="a config file", error=ConfigError)
    if content is None:
        return {}
    if not isinstance(content, dict):
        received = "a list" if isinstance(content, list) else repr(content)[:100]
        raise ConfigError(
            f"{path}: expected a mapping such as 'training: {{epochs: 5}}', received {received}."
        )
    return content
