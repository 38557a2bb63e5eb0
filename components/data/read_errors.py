"""What the reader raises inside a ``tf.data`` pipeline comes out as an error of TensorFlow; turn it back."""

from __future__ import annotations

import re

from qat_lib.errors import DataError

_RAISED_IN_PYTHON = re.compile(r"\bDataError: (?P<message>[^\n]+)")


def as_data_error(error: BaseException) -> DataError | None:
    """Return the DataError that TensorFlow reports inside ``error``, or None when it is about something else.

    TensorFlow keeps of an exception in ``tf.numpy_function`` only the text: the name of the class,
    the message, and a traceback.
    """
    if not type(error).__module__.startswith("tensorflow"):
        return None
    found = _RAISED_IN_PYTHON.search(str(error))
    return DataError(found["message"]) if found else None
