"""State file with the finished layers of an interrupted rounding."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from qat_lib.errors import CalibrationError
from qat_lib.files.whole_files import written_beside

logger = logging.getLogger("qat_lib")

Finished = tuple[Any, Any, float, float]
"""Rounded weights of a layer, their ranges, and the errors before and after."""
PARTS = ("weights", "largest", "before", "after")


def fingerprint(weights: Sequence[np.ndarray], batches: Sequence[Any], settings: Any) -> str:
    """Return a digest of the weights of a model, of the data and of settings (JSON types)."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=repr).encode())
    for array in weights:
        digest.update(np.ascontiguousarray(array).tobytes())
    for batch in batches:
        for part in batch if isinstance(batch, (list, tuple)) else [batch]:
            digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


class RoundingState:
    """Finished layers by name, in memory and optionally in a file."""

    def __init__(self, path: Path | None, mark: str) -> None:
        self._path = path
        self._mark = mark
        self._layers: dict[str, Finished] = {}

    @classmethod
    def open(cls, path: str | Path | None, mark: str) -> RoundingState:
        """Return the state from a file; empty if the file is missing or of another model.

        Raises:
            CalibrationError: the file is damaged.
        """
        state = cls(None if path is None else Path(path), mark)
        if state._path is None or not state._path.exists():
            return state
        try:
            with np.load(state._path, allow_pickle=False) as arrays:
                found = dict(arrays)
        except (OSError, ValueError, EOFError, BadZipFile) as error:
            raise CalibrationError(
                f"Expected the state of a rounding in {path}. It can't be read ({error}): remove it "
                "to begin anew."
            ) from error
        # Not an error: the file is overwritten with the layers of this model.
        if str(found.pop("mark", "")) != mark:
            logger.warning(
                "%s is of another model, other data or other settings: rounding begins anew.", path
            )
            return state
        for key in found:
            layer, _, part = key.rpartition("|")
            # Once per layer; the other parts are read along with the weights.
            if part == PARTS[0]:
                weights, largest, before, after = (found[f"{layer}|{x}"] for x in PARTS)
                state._layers[layer] = (weights, largest, float(before), float(after))
        return state

    def get(self, layer: str) -> Finished | None:
        """Return the results of a finished layer, or None."""
        return self._layers.get(layer)

    def keep(
        self, layer: str, weights: np.ndarray, largest: np.ndarray, before: float, after: float
    ) -> None:
        """Store a finished layer; the file is replaced atomically."""
        self._layers[layer] = (weights, largest, before, after)
        if self._path is None:
            return
        arrays: dict[str, Any] = {"mark": self._mark}
        for name, parts in self._layers.items():
            arrays.update({f"{name}|{part}": x for part, x in zip(PARTS, parts, strict=True)})
        # An open file, since ``savez`` would append ".npz" to a path.
        with written_beside(self._path) as unfinished, unfinished.open("wb") as file:
            np.savez(file, **arrays)
