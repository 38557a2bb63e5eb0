"""Descriptive names of runs."""

from __future__ import annotations

from datetime import datetime
from pathlib import PurePosixPath

from qatline.pipelines.config.run_config import RunConfig


def run_name(config: RunConfig, now: datetime) -> str:
    """Return the default name of a run on a cluster: model, data and minute.

    Examples:
        >>> run_name(RunConfig(), datetime(2026, 11, 22, 17, 30))
        'resnet_digits on digits, 2026-11-22 17:30'
    """
    return f"{model_on_data(config)}, {now:%Y-%m-%d %H:%M}"


def model_on_data(config: RunConfig) -> str:
    """Return model and data of a config: ``resnet_digits on digits``."""
    return f"{_model(config.model.name)} on {_data(config)}"


def _model(name: str) -> str:
    if name.endswith(".keras"):
        return PurePosixPath(name).stem
    return name.removeprefix("keras.applications:").replace(":", ".")


def _data(config: RunConfig) -> str:
    data = config.data
    return (data.name or "").replace(":", ".") or (
        PurePosixPath(data.path).stem if data.path else data.kind
    )
