"""``Registry`` implementation for registered models of MLflow."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from qat_lib.errors import TrackingError
from qatline.components.registry.facts import INPUTS_VARIABLE
from qatline.components.registry.registry import INPUTS, LOCK_TOKEN, ModelState, RegisteredVersion
from qatline.components.support.credentials import scrub
from qatline.components.support.model_names import logged_name
from qatline.components.tracking.store import patient, probe, translated
from qatline.components.tracking.tracker import PARENT_VARIABLE, RUN_ID_VARIABLE, URI_VARIABLE

_PAGE = 1000
_MISSING = frozenset({"RESOURCE_DOES_NOT_EXIST"})
# Also missing: MLflow reads the existing model for its message, and another may remove it before.
_EXISTS = frozenset({"RESOURCE_ALREADY_EXISTS"}) | _MISSING
_NO_TAGS: Mapping[str, str] = MappingProxyType({})
_LONGEST_TAG = 4900  # characters; the tables of the registry hold 5000

_T = TypeVar("_T")


class MlflowRegistry:
    """A registered model of MLflow. Every method raises TrackingError if the store fails.

    Args:
        client: an ``MlflowClient``.
        name: name of the model.
        experiment_id: experiment that stores the files of new versions.
        run_id: MLflow run of new versions; empty for none.
    """

    def __init__(
        self, client: Any, name: str, *, experiment_id: str = "", run_id: str = ""
    ) -> None:
        self.name = name
        self._client = client
        self._experiment_id = experiment_id
        self._run_id = run_id

    def ensure(self, tags: Mapping[str, str] = _NO_TAGS) -> None:
        """Create the registered model with these tags if it is missing.

        Of concurrent calls, exactly one creates it: its name is a primary key of the database.
        """
        safe = {key: _safe(value) for key, value in tags.items()}
        self._call(
            lambda: self._client.create_registered_model(self.name, tags=safe), allowed=_EXISTS
        )

    def remove(self) -> None:
        """Remove the registered model; a missing one is ignored."""
        self._call(lambda: self._client.delete_registered_model(self.name), allowed=_MISSING)

    def lock(self, number: int) -> MlflowRegistry:
        """Return the registered model that is the lock of that number of this one."""
        # Unity Catalog allows no further dot in a name.
        return MlflowRegistry(self._client, f"{self.name}-lock-{number}")

    def state(self) -> ModelState:
        """Return its tags and aliases; empty if the model is missing."""
        found = self._call(lambda: self._client.get_registered_model(self.name), allowed=_MISSING)
        if found is None:
            return ModelState()
        aliases = {alias: self._number(alias, text) for alias, text in found.aliases.items()}
        return ModelState(tags=dict(found.tags), aliases=aliases)

    def names(self) -> list[str]:
        """Return the names of all registered models in the store, without locks."""
        found: list[str] = []
        token: str | None = None
        while True:
            page: Any = self._call(partial(self._search, token))
            found += [model.name for model in page if LOCK_TOKEN not in model.tags]
            token = page.token
            if not token:
                return found

    def set_tag(self, key: str, value: str) -> None:
        """Set a tag of the model."""
        text = _safe(value)
        self._call(lambda: self._client.set_registered_model_tag(self.name, key, text))

    def delete_tag(self, key: str) -> None:
        """Delete a tag of the model; missing tags are ignored."""
        self._call(
            lambda: self._client.delete_registered_model_tag(self.name, key), allowed=_MISSING
        )

    def set_alias(self, alias: str, number: int) -> None:
        """Point an alias to a version."""
        self._call(lambda: self._client.set_registered_model_alias(self.name, alias, str(number)))

    def delete_alias(self, alias: str) -> None:
        """Delete an alias; missing aliases are ignored."""
        self._call(
            lambda: self._client.delete_registered_model_alias(self.name, alias), allowed=_MISSING
        )

    def versions(self) -> Sequence[RegisteredVersion]:
        """Return all versions, oldest first."""
        found: list[RegisteredVersion] = []
        token: str | None = None
        while True:
            page = self._call(partial(self._page, token), allowed=_MISSING)
            for version in page or ():
                found.append(_version(version))
            token = page.token if page is not None else None
            if not token:
                return sorted(found, key=lambda version: version.number)

    def new_place(self) -> str:
        """Return a new, unique name for an upload."""
        return f"{self._experiment_id}/{logged_name(self.name)}-{uuid.uuid4().hex[:12]}"

    def upload(self, place: str, folder: Path) -> str:
        """Store the files of ``folder`` as a logged model and return its URI."""
        experiment, _, name = place.partition("/")

        made: Any = self._call(
            lambda: self._client.create_logged_model(
                experiment, name=name, source_run_id=self._run_id or None, model_type="onnx"
            )
        )
        self._call(lambda: self._client.log_model_artifacts(made.model_id, str(folder)))
        self._call(lambda: self._client.finalize_logged_model(made.model_id, "READY"))
        return f"models:/{made.model_id}"

    def discard_upload(self, place: str) -> None:
        """Remove the upload of that name, if any."""
        experiment, _, name = place.partition("/")

        def remove() -> None:
            wanted = f"name = '{name}'"
            for found in self._client.search_logged_models([experiment], filter_string=wanted):
                self._client.delete_logged_model(found.model_id)

        self._call(remove, allowed=_MISSING)

    def create_version(self, source: str, tags: Mapping[str, str], description: str) -> int:
        """Create a version of an upload together with its tags, and return its number."""
        safe = {key: _safe(value) for key, value in tags.items()}
        made: Any = self._call(
            lambda: self._client.create_model_version(
                self.name,
                source,
                run_id=self._run_id or None,
                tags=safe,
                description=_safe(description),
                model_id=source.removeprefix("models:/"),
            )
        )
        return int(made.version)

    def set_version_tags(self, number: int, tags: Mapping[str, str]) -> None:
        """Set tags of a version, one request each."""
        for key, value in tags.items():
            self._set_version_tag(number, key, _safe(value))

    def download(self, number: int, folder: Path) -> None:
        """Copy the files of a version into an existing empty folder."""

        def fetch() -> None:
            from mlflow.artifacts import download_artifacts

            with tempfile.TemporaryDirectory() as place:
                # For local stores MLflow returns its own folder: copy it, never move it.
                found = download_artifacts(
                    artifact_uri=f"models:/{self.name}/{number}",
                    dst_path=place,
                    tracking_uri=self._client.tracking_uri,
                )
                shutil.copytree(found, folder, dirs_exist_ok=True)

        self._call(fetch)

    def _set_version_tag(self, number: int, key: str, value: str) -> None:
        self._call(lambda: self._client.set_model_version_tag(self.name, str(number), key, value))

    def _search(self, token: str | None) -> Any:
        return self._client.search_registered_models(max_results=_PAGE, page_token=token)

    def _number(self, alias: str, text: Any) -> int:
        if not re.fullmatch(r"\d+", str(text)):
            raise TrackingError(
                f"the registered model {self.name!r} is damaged: expected the alias {alias!r} to "
                f"name a version's number, received {text!r}. Set the alias anew: MlflowClient()."
                f"set_registered_model_alias({self.name!r}, {alias!r}, '1')."
            )
        return int(text)

    def _page(self, token: str | None) -> Any:
        wanted = f"name = '{self.name}'"
        return self._client.search_model_versions(wanted, max_results=_PAGE, page_token=token)

    def _call(self, request: Callable[[], _T], *, allowed: Container[str] = ()) -> _T | None:
        """Send a request; return None if it fails with one of the error codes ``allowed``."""
        what = f"the registered model {self.name!r} can't be used"
        with translated(what, self._client.tracking_uri):
            from mlflow.exceptions import MlflowException

            try:
                return patient(request)
            except MlflowException as error:
                if error.error_code in allowed:
                    return None
                raise


def open_registry(name: str) -> MlflowRegistry:
    """Open a registered model in the store configured by the environment.

    Raises:
        TrackingError: the store is unreachable.
    """
    uri = os.environ.get(URI_VARIABLE, "")
    probe(uri)
    # MLflow's default retries an unreachable server for minutes; ``patient`` already repeats
    # requests.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    with translated("the model registry can't be opened"):
        import mlflow

        client = mlflow.MlflowClient(tracking_uri=uri or None)
        run_id = os.environ.get(PARENT_VARIABLE) or os.environ.get(RUN_ID_VARIABLE, "")
        experiment_id = _experiment(client, run_id)
        _take_over_inputs(client, run_id)
    return MlflowRegistry(client, name, experiment_id=experiment_id, run_id=run_id)


def _experiment(client: Any, run_id: str) -> str:
    """Return the experiment of the run, or the one configured by the environment."""
    if run_id:
        return str(client.get_run(run_id).info.experiment_id)
    if found := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return found
    named = client.get_experiment_by_name(os.environ.get("MLFLOW_EXPERIMENT_NAME", "qatline"))
    return str(named.experiment_id) if named is not None else "0"


def _take_over_inputs(client: Any, run_id: str) -> None:
    """Copy the fingerprint of the inputs from the pipeline's run into the environment.

    A local launcher sets the variable itself; on a cluster the first pod records it with the run.
    """
    if os.environ.get(INPUTS_VARIABLE) or not run_id:
        return
    tags = client.get_run(run_id).data.tags
    if INPUTS not in tags and (parent := tags.get("mlflow.parentRunId")):
        tags = client.get_run(parent).data.tags
    if found := tags.get(INPUTS):
        os.environ[INPUTS_VARIABLE] = found


def _version(found: Any) -> RegisteredVersion:
    return RegisteredVersion(
        number=int(found.version),
        tags=dict(found.tags or {}),
        run_id=found.run_id or "",
        created=int(found.creation_timestamp or 0),
    )


def _safe(text: str) -> str:
    """Return a text without secrets, truncated to the limit of the registry's tables."""
    return scrub(str(text))[:_LONGEST_TAG]
