"""Import TensorFlow without its early C++ log on stderr.

TensorFlow writes it before its log levels take effect.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile


def import_tensorflow() -> None:
    """Import TensorFlow and Keras; show their stderr only on failure."""
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
