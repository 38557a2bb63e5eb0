"""The names under which MLflow takes a model.

Its registry and its logged models have rules of their own.
"""

from __future__ import annotations

import re

_LONGEST = 200  # characters; the registry's tables hold 256


def registered_name(name: str) -> str:
    """Return ``name`` as MLflow's registry takes it.

    Letters, digits and ``_ . -``, and no dot in front.

    The registry refuses ``/`` and ``:``, and what is no plain file name, such as ``..``.
    """
    return re.sub(r"[^\w.-]+", "_", name).lstrip(".")[:_LONGEST] or "model"


def logged_name(name: str) -> str:
    """Return ``name`` as a logged model takes it.

    Without dots, slashes, colons, percent signs and quotes.

    Keras calls its own networks by names with dots: ``mobilenetv2_1.00_224``.
    """
    return re.sub(r"[/:.%\"']", "_", name) or "model"
