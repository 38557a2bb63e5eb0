"""Reports of step failures, with a cause that users can act on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qat_lib.errors import DataError, MissingPackageError, QatlineError
from qat_lib.support.extras import missing_hint
from qatline.components.support.disk_errors import as_storage_error, is_disk_full
from qatline.components.support.events import emit

_RAISED_IN_PYTHON = re.compile(r"\bDataError: (?P<message>[^\n]+)")


@contextmanager
def reported_failure(step: str, output: Path) -> Iterator[None]:
    """Report a step's failure as an event and raise it, translated.

    The temporary files of the step are removed first: the disk may be full.
    """
    try:
        yield
    except Exception as error:
        reason = _translated(error, output)
        known = isinstance(reason, QatlineError)
        emit(
            "error",
            step,
            type=type(reason).__name__,
            message=str(reason),
            exit_code=reason.exit_code if isinstance(reason, QatlineError) else 1,
            expected=known,
        )
        if reason is not error:
            raise reason from error
        raise


def _translated(error: Exception, output: Path) -> Exception:
    """Return the error to report.

    Full disks and damaged data are reported as such, independent of the library that detected them.
    """
    if isinstance(error, QatlineError):
        return error
    if is_disk_full(error):
        return as_storage_error(error, output)
    if isinstance(error, ImportError) and (hint := missing_hint(error)) is not None:
        return MissingPackageError(hint)
    return as_data_error(error) or error


def as_data_error(error: BaseException) -> DataError | None:
    """Return the DataError of a TensorFlow error, raised in Python or for a damaged JPEG, or None.

    TensorFlow keeps only the text of an exception in ``tf.numpy_function``: class name, message and
    traceback.
    """
    if not type(error).__module__.startswith("tensorflow"):
        return None
    if "Invalid JPEG data" in str(error):
        return DataError(
            "an image was damaged since the data set was prepared. Run prepare_data again."
        )
    found = _RAISED_IN_PYTHON.search(str(error))
    return DataError(found["message"]) if found else None
