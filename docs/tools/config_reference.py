"""Write docs/reference/configuration.md from the settings' own schema. Run it after a change of the settings."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from qatline.pipelines.config.run_config import RunConfig

TARGET = Path(__file__).parents[1] / "reference" / "configuration.md"

HEAD = """# Configuration

<!-- Written by docs/tools/config_reference.py from the settings' schema. -->

Settings are merged in this order, and later ones win: the defaults below, the YAML file (`--config`), its profiles in
the order of the options (`--profile`), `--set key=value`. A config contains only what differs from the defaults:

```yaml
seed: 3
training:
  epochs: 10
profiles:
  quick:
    data: { limit: 500 }
    training: { epochs: 2 }
```

An unknown key is an error that names the nearest known one. `qatline config show` prints the whole config, and
`qatline config schema` a JSON schema for editors:

```bash
qatline config schema > run-config.schema.json
qatline config show --set qat.epochs=2
```

Names, files, installed packages and the engine backend are checked before training. `qatline check` finds more; see
[Before a long run](../tutorials/getting-started.md#before-a-long-run).

## Secrets

A config is stored with its run, recorded in MLflow and compiled into the pipeline. So a value that contains a secret is
refused: a URL with a user and password, one with a token or a signature, an option called `password` or `api_key`. The
same goes for `MLFLOW_TRACKING_URI` and the addresses of object stores in the environment. Put credentials in the
variables that the libraries read:

| For | Variables |
|---|---|
| MLflow's server | `MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`, or `MLFLOW_TRACKING_TOKEN` |
| PostgreSQL | the user in the URI, `PGPASSWORD` or `~/.pgpass` |
| S3 | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, or a profile |
| Kubeflow Pipelines | `KFP_TOKEN` |

On a cluster [`cluster.secret_env`](../how-to/cluster.md#tracking) takes them from Kubernetes secrets.

The values of environment variables with a secret name (`DB_PASS`, `QATLINE_WEBHOOK`, `*_TOKEN`, `*_SECRET`,
`*_API_KEY`, ...) and the passwords in other variables' addresses are replaced by `***` in everything that qatline
prints, logs, reports and records, also in their percent-encoded forms. Messages of libraries are also searched for
passwords in addresses, authorization headers, fields such as `password=...` and tokens of well-known formats.
"""


def render() -> str:
    """Return the page."""
    schema = RunConfig.model_json_schema()
    definitions = schema["$defs"]
    sections: list[tuple[str, str, list[str]]] = []
    rows = []
    for name, field in schema["properties"].items():
        reference = _reference(field)
        if reference is None:
            rows.append(_row(name, field, RunConfig.model_fields[name].get_default()))
        else:
            default = getattr(RunConfig(), name)
            sections.append(
                (
                    name,
                    _summary(definitions[reference]),
                    list(_rows(definitions, reference, default)),
                )
            )
    parts = [HEAD, "## The run\n", _table(rows)]
    for name, text, lines in sections:
        parts += [f"## {name}\n", f"{text}\n", _table(lines)]
    return "\n".join(parts)


def _rows(
    definitions: Mapping[str, Any], reference: str, value: BaseModel, prefix: str = ""
) -> Iterator[str]:
    for name, field in definitions[reference]["properties"].items():
        inner = _reference(field)
        if inner is not None and isinstance(getattr(value, name), BaseModel):
            yield from _rows(definitions, inner, getattr(value, name), f"{prefix}{name}.")
        else:
            yield _row(prefix + name, field, getattr(value, name))


def _reference(field: Mapping[str, Any]) -> str | None:
    found = field.get("$ref") or next(
        (item["$ref"] for item in field.get("allOf", []) if "$ref" in item), None
    )
    return found.rpartition("/")[2] if found else None


def _row(name: str, field: Mapping[str, Any], default: object) -> str:
    shown = "" if default is None else f"`{_plain(default)}`"
    return f"| `{name}` | {_type(field)} | {shown} | {_escape(field.get('description', ''))} |"


def _plain(value: object) -> str:
    return (
        str(list(value) if isinstance(value, tuple) else value).lower()
        if isinstance(value, bool)
        else str(value)
    )


def _type(field: Mapping[str, Any]) -> str:
    options = field.get("anyOf") or [field]
    words = [word for option in options if (word := _one_type(option))]
    return " or ".join(dict.fromkeys(words))


def _one_type(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "null":
        return ""
    names = {
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "boolean": "true, false",
        "array": "list",
    }
    bounds = [
        f"{sign} {_plain(field[key])}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if key in field
    ]
    return " ".join([names.get(str(field.get("type")), "mapping"), ", ".join(bounds)]).strip()


def _summary(definition: Mapping[str, Any]) -> str:
    return _escape(str(definition.get("description", "")).split("\n\n")[0].replace("\n", " "))


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _table(rows: list[str]) -> str:
    return "\n".join(["| Key | Type | Default | |", "|---|---|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")
