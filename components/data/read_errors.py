"""Recovery of the reader's errors from those of TensorFlow.

TensorFlow wraps exceptions raised inside a ``tf.data`` pipeline.
"""

from __future__ import annotations

import re

from qat_lib.errors import DataError

_RAISED_IN_PYTHON = re.compile(r"\bDataError: (?P<message>[^\n]+)")


def as_data_error(error: BaseException) -> DataError | None:
    """Return the DataError wrapped in a TensorFlow error, or None.

    TensorFlow keeps only the text of an exception in ``tf.numpy_function``: class name, message and
    traceback.
    """
    if not type(error).__module__.startswith("tensorflow"):
        return None
    found = _RAISED_IN_PYTHON.search(str(error))
    return DataError(found["message"]) if found else None
