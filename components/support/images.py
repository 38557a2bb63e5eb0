"""Container images of the steps.

There are two, so that the engine steps do not need TensorFlow. They are read once at the
compilation of a pipeline: a component's image is part of the compiled file. Use immutable tags or
digests; Kubeflow's cache compares images by name and does not detect a changed tag. The names
contain the word "python", since kfp.local warns about other names.
"""

from __future__ import annotations

import os

IMAGE = os.environ.get("QATLINE_IMAGE", "ghcr.io/qatline/qatline-python-train:0.1.0")
"""Image of the steps that need TensorFlow or the whole pipeline (``QATLINE_IMAGE``)."""

ENGINE_IMAGE = os.environ.get("QATLINE_ENGINE_IMAGE", "ghcr.io/qatline/qatline-python-engine:0.1.0")
"""Image of ``build_engine``, ``evaluate`` and ``promote`` (``QATLINE_ENGINE_IMAGE``)."""
