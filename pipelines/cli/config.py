"""``qatline config``: show a config or its JSON schema."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from qatline.pipelines.cli.command import DEFAULT_CONFIG, ConfigChoice, command
from qatline.pipelines.cli.errors import reported
from qatline.pipelines.cli.options import CommandLine

app = CommandLine(no_args_is_help=True, help="Show a config, or write its schema for an editor.")


@app.command()
@command
def show(choice: ConfigChoice = DEFAULT_CONFIG) -> None:
    """Print the resolved config as YAML: defaults, file, profiles, then --set."""
    import yaml

    content = choice.load().to_dict()
    sys.stdout.write(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


@app.command()
def schema(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write instead of stdout.", show_default=False),
    ] = None,
) -> None:
    """Print the JSON schema of a config file."""
    with reported():
        from qatline.pipelines.config.schema import schema_text

        if output is None:
            sys.stdout.write(schema_text())
        else:
            from qatline.pipelines.cli.model_views import write_file

            write_file(output, schema_text(), make_folder=True)
