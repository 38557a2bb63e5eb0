"""What a pod prints."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

CODE = """
import logging
from qatline.components.runtime.pod_log import log_to_pod
log_to_pod()
logging.getLogger("qatline.components.x").info("ours, of %s", "https://me:secret1234@host/")
logging.getLogger("boto").info("theirs")
logging.getLogger("boto").warning("their warning")
"""


def test_pod_log_has_our_lines_and_their_warnings() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.splitlines() == ["ours, of https://***@host/", "their warning"]
