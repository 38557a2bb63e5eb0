"""Import TensorFlow without what its C++ side writes to stderr before its log levels count."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile


def import_tensorflow() -> None:
    """Import TensorFlow and Keras; what they write to stderr is shown only if the import fails."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            importlib.import_module("keras")
        except BaseException:
            held.seek(0)
            os.write(stderr, held.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
