"""MLflow runs left open by killed processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qatline.components.tracking.pipeline_run import close_children
from qatline.pipelines.run.folder import RunFolder

FOLDER_TAG = "qatline.run_dir"
"""Tag of an MLflow run with the run's folder on its machine."""


def close_dead_runs(client: Any, experiment: str) -> None:
    """Close an experiment's runs with status RUNNING and a terminated process."""
    wanted = f"attributes.status = 'RUNNING' and tags.`{FOLDER_TAG}` LIKE '/%'"
    for run in client.search_runs([experiment], filter_string=wanted, max_results=1000):
        folder = RunFolder(path=Path(run.data.tags[FOLDER_TAG]))
        # Folders of other machines do not exist here: their runs are left alone.
        if folder.record_file.is_file() and folder.settle().status != "running":
            close_children(client, experiment, run.info.run_id, "KILLED")
            client.set_terminated(run.info.run_id, "KILLED")
