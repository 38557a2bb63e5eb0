"""Whether a run on a cluster has anything new to do; runs in the first pod.

A run leaves the fingerprint of its inputs at its MLflow run. A later one that finds a judged run
with the same fingerprint has nothing to do.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from components.runtime.scrubbed_output import scrub_output
from components.runtime.steps import restore_integers
from components.tracking.pipeline_run import pipeline_run
from components.tracking.store import open_client, translated
from components.tracking.tracked import DESCRIPTION_TAG
from components.tracking.tracker import URI_VARIABLE
from pipelines.config.run_config import build_config
from pipelines.run.novelty import inputs_fingerprint

INPUTS_TAG = "qatline.inputs"
"""Tag of an MLflow run: the fingerprint of data, code and settings."""

VERDICT_TAG, NOTHING_NEW = "qatline.verdict", "nothing new"
_JUDGED = ("promote", "reject")

_log = logging.getLogger(__name__)


def check_new(sections: Mapping[str, Any]) -> bool:
    """Return whether the inputs differ from those of every run that was judged.

    The MLflow run of this pipeline run gets their fingerprint and, if there is nothing new, the
    verdict ``nothing new`` and the reason.

    Args:
        sections: The seed and the sections of the config, as the pipeline's parameters have them.

    Raises:
        ConfigError: A section is wrong, or a module that it names can't be found.
        DataError: A file can't be read.
        TrackingError: The store is away or refuses.
    """
    scrub_output()
    fingerprint = inputs_fingerprint(build_config(restore_integers(sections), source="pipeline"))
    client = open_client(os.environ.get(URI_VARIABLE, ""))
    parent, experiment = pipeline_run(client)
    with translated("earlier runs can't be looked up"):
        judged = _judged_before(client, experiment, fingerprint, parent)
        tags = {INPUTS_TAG: fingerprint}
        if judged is not None:
            reason = f"Nothing new: run {judged} had the same data, code and settings."
            _log.warning("%s", reason)
            tags |= {VERDICT_TAG: NOTHING_NEW, DESCRIPTION_TAG: reason}
        if parent is not None:
            for name, value in tags.items():
                client.set_tag(parent, name, value)
    return judged is None


def _judged_before(
    client: Any, experiment: str | None, fingerprint: str, parent: str | None
) -> str | None:
    """Return the name of a finished run with these inputs and a verdict."""
    if experiment is None:
        return None
    wanted = f"tags.`{INPUTS_TAG}` = '{fingerprint}' and attributes.status = 'FINISHED'"
    for run in client.search_runs([experiment], filter_string=wanted):
        if run.info.run_id != parent and run.data.tags.get(VERDICT_TAG) in _JUDGED:
            return str(run.info.run_name or run.info.run_id)
    return None
