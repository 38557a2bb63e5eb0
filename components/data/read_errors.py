"""Recover the reader's errors from TensorFlow's.

TensorFlow wraps what is raised inside a ``tf.data`` pipeline.
"""

from __future__ import annotations

import re

from qat_lib.errors import DataError

_RAISED_IN_PYTHON = re.compile(r"\bDataError: (?P<message>[^\n]+)")


def as_data_error(error: BaseException) -> DataError | None:
    """Return the DataError that TensorFlow wraps in ``error``, or None.

    TensorFlow keeps of an exception in ``tf.numpy_function`` only the text: the name of the class,
    the message, and a traceback.
    """
    if not type(error).__module__.startswith("tensorflow"):
        return None
    found = _RAISED_IN_PYTHON.search(str(error))
    return DataError(found["message"]) if found else None
