"""Detection of new inputs for a run on a cluster, in the first pod.

A run records the fingerprint of its inputs in its MLflow run and in the registered version. A later
run with the fingerprint of a judged version or run has nothing to do. On one machine,
``qatline.pipelines.run.novelty`` compares the versions, including those of cluster runs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from qatline.components.registry.access import run_registry
from qatline.components.support.scrubbed_output import scrub_output
from qatline.components.tracking.pipeline_run import pipeline_run
from qatline.components.tracking.store import open_client, translated
from qatline.components.tracking.tracked import DESCRIPTION_TAG
from qatline.components.tracking.tracker import URI_VARIABLE
from qatline.pipelines.config.run_config import build_config
from qatline.pipelines.run.novelty import inputs_fingerprint, judged_before
from qatline.pipelines.run.result import NOTHING_NEW

INPUTS_TAG = "qatline.inputs"
"""Tag of an MLflow run with the fingerprint of data, code and settings."""

VERDICT_TAG = "qatline.verdict"
_JUDGED = ("promote", "reject")

_log = logging.getLogger(__name__)


def check_new(sections: Mapping[str, Any]) -> bool:
    """Return whether the inputs differ from those of every judged version and run.

    The fingerprint is recorded in the MLflow run of this pipeline run. Without new inputs, the
    verdict ``nothing new`` and the reason are recorded as well.

    Args:
        sections: seed and sections of the config, as parameters of the pipeline.

    Raises:
        ConfigError: a section is wrong, or a module named in it cannot be found.
        DataError: a file cannot be read.
        TrackingError: the store is unreachable or refuses.
    """
    scrub_output()
    config = build_config(sections, source="pipeline")
    fingerprint = inputs_fingerprint(config)
    client = open_client(os.environ.get(URI_VARIABLE, ""))
    parent, experiment = pipeline_run(client)
    with translated("earlier runs can't be looked up"):
        # A sentence on the registered version with these inputs; empty for none.
        registry = run_registry(config.registry, _log.warning)
        known = "" if registry is None else judged_before(registry, fingerprint)
        if not known:
            known = _known_run(client, experiment, fingerprint, parent)
        tags = {INPUTS_TAG: fingerprint}
        if known:
            reason = f"Nothing new: {known}"
            _log.warning("%s", reason)
            tags |= {VERDICT_TAG: NOTHING_NEW, DESCRIPTION_TAG: reason}
        if parent is not None:
            for name, value in tags.items():
                client.set_tag(parent, name, value)
    return not known


def _known_run(client: Any, experiment: str | None, fingerprint: str, parent: str | None) -> str:
    """Return a sentence on the finished, judged run with these inputs; empty for none."""
    if experiment is None:
        return ""
    wanted = f"tags.`{INPUTS_TAG}` = '{fingerprint}' and attributes.status = 'FINISHED'"
    for run in client.search_runs([experiment], filter_string=wanted):
        if run.info.run_id != parent and run.data.tags.get(VERDICT_TAG) in _JUDGED:
            name = run.info.run_name or run.info.run_id
            return f"run {name} had the same data, code and settings."
    return ""
