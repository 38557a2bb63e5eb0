"""``qatline config``: show a config or its JSON schema."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from qatline.pipelines.cli.errors import reported
from qatline.pipelines.cli.options import (
    CommandLine,
    ConfigOption,
    DebugOption,
    ProfileOption,
    SetOption,
)

app = CommandLine(no_args_is_help=True, help="Show a config, or write its schema for an editor.")


@app.command()
def show(
    config: ConfigOption = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Print the resolved config as YAML: defaults, file, profiles, then --set."""
    import yaml

    with reported(debug=debug):
        from qatline.pipelines.config.run_config import load_config

        loaded = load_config(config, profiles=profile or [], overrides=set_ or [])
        sys.stdout.write(yaml.safe_dump(loaded.to_dict(), sort_keys=False, allow_unicode=True))


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
