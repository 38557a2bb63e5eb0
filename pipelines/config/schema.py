"""JSON schema of a config file, for editors."""

from __future__ import annotations

import json
from typing import Any

from qatline.pipelines.config.run_config import RunConfig

SCHEMA_URL = "https://json-schema.org/draft/2020-12/schema"


def config_schema() -> dict[str, Any]:
    """Return a config file's JSON schema: RunConfig and ``profiles``.

    Editors use it through a first line such as
    ``# yaml-language-server: $schema=run-config.schema.json``.
    """
    schema = RunConfig.model_json_schema()
    definitions = schema.pop("$defs")
    overlay = {key: value for key, value in schema.items() if key != "title"}
    definitions["Profile"] = {
        **overlay,
        "description": "A part of a config that --profile lays over the base.",
    }
    schema["properties"]["profiles"] = {
        "type": "object",
        "additionalProperties": {"$ref": "#/$defs/Profile"},
        "description": "Named parts of a config; --profile NAME lays one over the base.",
    }
    return {"$schema": SCHEMA_URL, **schema, "title": "qatline run config", "$defs": definitions}


def schema_text() -> str:
    """Return the schema as the text of a file."""
    return json.dumps(config_schema(), indent=2) + "\n"
