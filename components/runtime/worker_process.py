"""Local worker of a step: ``python -m qatline.components.runtime.worker_process``.

It reads the arguments of ``run_component`` as JSON and ends with the step's process.
"""

from __future__ import annotations

import json
import os
import sys

from qatline.components.runtime.step import run_component
from qatline.components.support.process import follow
from qatline.components.workers.worker_group import PARENT_VARIABLE


def join_step() -> None:
    """Take part in one step."""
    follow(int(os.environ.pop(PARENT_VARIABLE)))
    call = json.loads(sys.stdin.buffer.read())
    run_component(call.pop("step"), **call, output="")


if __name__ == "__main__":
    join_step()
