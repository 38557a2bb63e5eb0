"""Log of a pod: qatline's messages, warnings of libraries, no secrets."""

from __future__ import annotations

import logging

from qatline.components.support.scrubbed_output import scrub_output


def log_to_pod() -> None:
    """Log qatline's messages from INFO and libraries' from WARNING; mask secrets."""
    scrub_output()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("qatline").setLevel(logging.INFO)
