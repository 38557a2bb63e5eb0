"""Options that the commands of ``qatline cluster`` share."""

from __future__ import annotations

from typing import Annotated

import typer

Host = Annotated[str, typer.Option(envvar="KFP_ENDPOINT", help="URL of the KFP API.")]
Namespace = Annotated[str, typer.Option(help="Namespace (multi-user servers).", show_default=False)]
Token = Annotated[
    str | None, typer.Option(envvar="KFP_TOKEN", help="Bearer token.", show_default=False)
]
Experiment = Annotated[str, typer.Option(help="KFP experiment.")]
ScheduleName = Annotated[str, typer.Argument(metavar="NAME", help="Schedule name.")]
