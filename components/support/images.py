"""The container images of the steps.

Two, so that the engine step carries no TensorFlow. They are read once, when a pipeline is compiled:
a component's image is part of the compiled file. Use immutable tags or digests; Kubeflow's cache
compares the image by name and does not see what is behind a tag. The names keep the word "python":
kfp.local warns about any other.
"""

from __future__ import annotations

import os

IMAGE = os.environ.get("QATLINE_IMAGE", "ghcr.io/qatline/qatline-python-train:0.1.0")
"""Image of the steps that need TensorFlow or the whole pipeline (``QATLINE_IMAGE``)."""

ENGINE_IMAGE = os.environ.get("QATLINE_ENGINE_IMAGE", "ghcr.io/qatline/qatline-python-engine:0.1.0")
"""Image of ``build_engine``, ``evaluate`` and ``promote`` (``QATLINE_ENGINE_IMAGE``)."""
