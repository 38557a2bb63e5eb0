"""Parse the YAML of a config file or a ``--set`` value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qat_lib.errors import ConfigError
from qat_lib.files.strict_yaml import parse_yaml, read_yaml


def parse_config(text: str, source: str) -> Any:
    """Parse one YAML document.

    Args:
        text: The document.
        source: What to call it in a message, such as an option.

    Raises:
        ConfigError: The text is not YAML of plain values, or is out of proportion.
    """
    return parse_yaml(text, source, error=ConfigError)


def read_yaml_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file with a top-level mapping or no content.

    Raises:
        ConfigError: The file can't be read, is not YAML, or holds something else.
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
