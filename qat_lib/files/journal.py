"""Intermediate results on disk, to resume a killed computation."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.errors import ConfigError
from qat_lib.files.output_files import check_output
from qat_lib.files.state_file import read_state, write_state
from qat_lib.files.whole_files import written_beside

logger = logging.getLogger("qat_lib")


class Journal:
    """Results by key; each one is in a file as soon as it is computed.

    The file also contains the fingerprint of the computation. The results of another computation
    are dropped, with a warning.

    Args:
        path: the file, replaced atomically; None keeps the results in memory only.
        fingerprint: digest of everything that the results depend on.

    Raises:
        ConfigError: the file is not a journal, is damaged, or can't be written.

    Examples:
        >>> journal = Journal(None, "digest")
        >>> journal.result("a", lambda: 1.5)
        1.5
        >>> journal.result("a", lambda: 2.5)
        1.5
    """

    def __init__(self, path: Path | None, fingerprint: str) -> None:
        self.path = path
        self._fingerprint = fingerprint
        self._results: dict[str, Any] = {}
        if path is None:
            return
        check_output(path)
        if not path.exists():
            return
        try:
            state = read_state(path)
            known, results = state["fingerprint"], dict(state["results"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            # Not overwritten: it may be another file of the user.
            raise ConfigError(
                f"Expected a file with intermediate results. {path} can't be read ({error}): "
                "remove it to start over, or name another one."
            ) from error
        if known == fingerprint:
            self._results = results
        else:
            logger.warning(
                "%s is of another model, other data or other settings and is replaced.", path
            )

    def __len__(self) -> int:
        """Return the number of results."""
        return len(self._results)

    def result(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return the stored result of ``key``, or compute and store it.

        Args:
            key: key of the result.
            compute: returns the result, in types that ``write_state`` supports.
        """
        if key not in self._results:
            self._results[key] = compute()
            self._write()
        return self._results[key]

    def knows(self, key: str) -> bool:
        """Whether the result of ``key`` is stored."""
        return key in self._results

    def remove(self) -> None:
        """Delete the file after a complete computation."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self.path is None:
            return
        try:
            with written_beside(self.path) as unfinished:
                write_state(
                    unfinished, {"fingerprint": self._fingerprint, "results": self._results}
                )
        except OSError as error:
            raise ConfigError(
                f"Expected a file for intermediate results. {self.path} can't be written: "
                f"{error.strerror or error}. Name another one."
            ) from error


def fingerprint(settings: Any, arrays: Iterable[Any]) -> str:
    """Return a SHA-256 of settings and arrays.

    Args:
        settings: JSON types, or objects with a stable ``repr``.
        arrays: for example the weights of a model, and data.
    """
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=repr).encode())
    for array in map(np.ascontiguousarray, arrays):
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
