"""Access to the registered model of a config outside a run."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from qat_lib.errors import ConfigError, TrackingError
from qat_lib.support.extras import missing_packages
from qatline.components.registry.mlflow_registry import MlflowRegistry, open_registry
from qatline.components.registry.registry import RUN, RegisteredVersion
from qatline.components.support.credentials import scrub
from qatline.components.tracking.database import database_path, has_content
from qatline.components.tracking.store import ensure_store
from qatline.components.tracking.tracker import RUN_ID_VARIABLE, URI_VARIABLE
from qatline.pipelines.config.run_config import RunConfig, build_config
from qatline.pipelines.run.tracking import default_uri


def named_registry(config: RunConfig, name: str | None = None) -> MlflowRegistry:
    """Open the registered model named in a config.

    Args:
        config: the config; its tracking store contains the registry.
        name: overrides the config's name.

    Raises:
        ConfigError: the name is missing or invalid, or the store has no model of that name.
        TrackingError: the store does not exist or is unusable.
    """
    wanted = config.registry.name if name is None else _checked(name)
    if wanted is None:
        raise ConfigError(
            "Expected the name of a registered model: --name, or registry.name in the config. "
            "Without one nothing is registered, so that two projects never share a champion."
        )
    uri = config.tracking.uri or os.environ.get(URI_VARIABLE) or default_uri(Path(config.output))
    database = database_path(uri)
    # Without MLflow, opening the store reports how to install it.
    if database is not None and not has_content(database) and not missing_packages(["mlflow"]):
        raise TrackingError(
            f"Expected a tracking store that runs have registered models in, found none at "
            f"{database}. Give the folder of the runs with --runs-dir, or tracking.uri in the "
            "config."
        )
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ["MLFLOW_EXPERIMENT_ID"] = ensure_store(uri, config.tracking.experiment)
    os.environ[URI_VARIABLE] = uri
    os.environ.pop(RUN_ID_VARIABLE, None)  # do not register in a run of the caller
    registry = open_registry(wanted)
    if wanted not in (names := registry.names()):
        near = difflib.get_close_matches(wanted, names, n=1)
        listed = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names) or 'none'}."
        raise ConfigError(
            f"Expected a registered model of {scrub(uri)}, received {wanted!r}; {listed} A run with "
            "registry.name registers one."
        )
    return registry


def _checked(name: str) -> str | None:
    """Return a name after validation as part of a config."""
    values = {"registry": {"name": name}}
    return build_config(values, source="--name").registry.name


def version_of_run(registry: MlflowRegistry, run: str) -> RegisteredVersion:
    """Return the version registered by a run.

    Args:
        registry: the registered model.
        run: id or folder of a run, an MLflow run, or a version's number.

    Raises:
        ConfigError: no version matches.
    """
    from qatline.components.registry.by_hand import find_version

    folder = Path(run)
    name = folder.name if (folder / "run.json").is_file() else run
    return find_version(registry, name, RUN)
