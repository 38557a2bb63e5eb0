"""Import TensorFlow without its C++ log and its warnings on stderr.

TensorFlow writes its first log lines before its log levels take effect.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile

from qatline.components.support.frameworks import import_framework


def import_tensorflow() -> None:
    """Import TensorFlow and Keras; show their stderr only on failure."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            import_framework("keras")
        except BaseException:
            held.seek(0)
            os.write(stderr, held.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
    # A diagnosis compiles one function for each layer, which TensorFlow takes for retracing.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
