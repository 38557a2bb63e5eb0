"""Valid names of models in MLflow's registry, of logged models and of served models."""

from __future__ import annotations

import re

_LONGEST = 200  # characters; the registry's tables hold 256


def registered_name(name: str) -> str:
    """Return ``name`` as a valid name for MLflow's registry.

    It consists of letters, digits and ``_ . -`` and does not start with a dot.

    The registry rejects ``/`` and ``:``, and names that are not plain file names, such as ``..``.
    """
    return re.sub(r"[^\w.-]+", "_", name).lstrip(".")[:_LONGEST] or "model"


def logged_name(name: str) -> str:
    """Return ``name`` as a valid name of a logged model.

    It contains no dots, slashes, colons, percent signs or quotes. Keras's networks have dots in
    their names, such as ``mobilenetv2_1.00_224``.
    """
    return re.sub(r"[/:.%\"']", "_", name) or "model"


def served_name(name: str) -> str:
    """Return ``name`` as a valid name of a served model: a part of addresses, and a folder."""
    return re.sub(r"[^a-zA-Z0-9_.-]+", "-", name)[:100].strip("-._") or "model"
