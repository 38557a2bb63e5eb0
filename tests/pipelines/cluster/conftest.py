import sys
from collections.abc import Iterator
from types import FrameType, SimpleNamespace

import pytest


def _callers() -> list[tuple[None, None, None, str]]:
    """Return what of ``inspect.stack()`` kfp reads: the fourth field, a function's name."""
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        found.append((None, None, None, frame.f_code.co_name))
        frame = frame.f_back
    return found


@pytest.fixture(autouse=True, scope="module")
def _quick_tasks() -> Iterator[None]:
    """Spare kfp the search for the source of each function that stands on pytest's long stack.

    It asks for the whole stack with every setting of a task, to name its caller in an error; with
    TensorFlow's modules loaded, that took nine tenths of these tests' time.
    """
    from kfp.dsl import pipeline_task

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline_task, "inspect", SimpleNamespace(stack=_callers))
        yield
