"""Open MLflow's UI on one run."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

from rich.console import Console

from qat_lib.errors import MissingPackageError, TrackingError
from qat_lib.support.extras import install_hint, missing_packages
from qatline.components.support.credentials import check_address
from qatline.pipelines.run.folder import find_run
from qatline.pipelines.run.record import read_tracking


def open_ui(run: str, *, output: Path, port: int) -> None:
    """Show where a run is in MLflow.

    For a store in a file, serve its UI in the foreground until Ctrl-C.

    Args:
        run: A run's id in ``output``, or the path of its folder.
        output: The folder of the runs.
        port: Where the UI listens, on this machine only.

    Raises:
        ConfigError: There is no such run, or its tracking URI holds credentials.
        MissingPackageError: MLflow is not installed.
        TrackingError: The run was not tracked.
    """
    folder = find_run(output, run)
    if not folder.tracking_file.exists():
        raise TrackingError(
            f"Run {folder.run_id} has no record in MLflow: it was not tracked, or ended too early."
        )
    tracking = read_tracking(folder.tracking_file)
    check_address(tracking.uri, f"the tracking URI of run {folder.run_id}")
    place = f"#/experiments/{tracking.experiment_id}/runs/{tracking.run_id}"
    console = Console(highlight=False)
    if tracking.uri.startswith(("http://", "https://")):
        url = f"{tracking.uri.rstrip('/')}/{place}"
        console.print(url, soft_wrap=True)
        webbrowser.open(url)
        return
    if missing_packages(["mlflow"]):
        raise MissingPackageError(
            f"MLflow's UI needs the package mlflow. {install_hint(['mlflow'])}"
        )
    console.print(f"http://127.0.0.1:{port}/{place}", soft_wrap=True)
    console.print(
        "Starting MLflow; open the address above once it says that it is running. Ctrl-C ends it."
    )
    # Without it the server starts seven more processes, for jobs that nothing here uses.
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    sys.stdout.flush()
    arguments = [
        "ui",
        "--backend-store-uri",
        tracking.uri,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", *arguments])
