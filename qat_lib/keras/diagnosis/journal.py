"""Journal of intermediate results on disk, to resume a killed measurement."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.errors import ConfigError
from qat_lib.files.output_files import check_output

_LARGEST = 1 << 26  # bytes that are read of an earlier journal


class Journal:
    """Results by key, each written to a file immediately after its computation.

    Each line is a JSON object with ``key`` and ``value``; the first line contains the fingerprint
    of the measurement. A file with another fingerprint is ignored, as is everything from the first
    damaged line on.

    Args:
        path: the file; None keeps the results in memory only.
        fingerprint: digest of everything that the results depend on.

    Raises:
        ConfigError: the path is not usable as an output file.

    Examples:
        >>> journal = Journal(None, "digest")
        >>> journal.result("a", lambda: 1.5)
        1.5
        >>> journal.result("a", lambda: 2.5)
        1.5
    """

    def __init__(self, path: Path | None, fingerprint: str) -> None:
        self.path = path
        self._results: dict[str, Any] = {}
        self._header = {"journal": 1, "fingerprint": fingerprint}
        self._is_open = False
        if path is None:
            return
        check_output(path)
        for line in _lines_of(_read(path), fingerprint)[1:]:
            self._results[line["key"]] = line["value"]

    def __len__(self) -> int:
        """Return the number of results."""
        return len(self._results)

    def result(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return the stored result of ``key``, or compute and store it.

        Args:
            key: key of the measurement.
            compute: returns the result as JSON types.
        """
        if key not in self._results:
            self._results[key] = compute()
            self._append({"key": key, "value": self._results[key]})
        return self._results[key]

    def knows(self, key: str) -> bool:
        """Whether the result of ``key`` is stored."""
        return key in self._results

    def remove(self) -> None:
        """Delete the file after a complete measurement."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _append(self, line: dict[str, Any]) -> None:
        if self.path is None:
            return
        lines = [line]
        # The first write replaces the file: it may end with a partial line of a killed run, or
        # contain another measurement.
        if not self._is_open:
            known = [{"key": key, "value": value} for key, value in self._results.items()]
            lines = [self._header, *known]
        try:
            with self.path.open("a" if self._is_open else "w", encoding="utf-8") as stream:
                stream.writelines(json.dumps(each) + "\n" for each in lines)
                # A result can take minutes to compute: sync it, so that it survives a power loss.
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise ConfigError(
                f"Expected a file for intermediate results. {self.path} can't be written: "
                f"{error.strerror or error}. Name another one."
            ) from error
        self._is_open = True


def _read(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            # A limit, in case the path names a large file of another kind.
            return stream.read(_LARGEST).decode("utf-8", errors="replace")
    except OSError:
        return ""


def _lines_of(text: str, fingerprint: str) -> list[dict[str, Any]]:
    """Return the leading complete lines of a journal; none if the fingerprint differs."""
    lines: list[dict[str, Any]] = []
    for row in text.splitlines():
        try:
            line = json.loads(row)
        except (ValueError, RecursionError):
            break
        if not isinstance(line, dict) or (lines and {"key", "value"} - line.keys()):
            break
        lines.append(line)
    return lines if lines and lines[0].get("fingerprint") == fingerprint else []


def fingerprint_of(model: Any, arrays: Iterable[Any], settings: Any) -> str:
    """Return a digest of a Keras model with its weights, of data and of settings.

    Args:
        model: a built Keras model.
        arrays: the data, as arrays.
        settings: further values, as JSON types or objects with a stable ``repr``.
    """
    # Structure, values of all variables (ranges, too), data and settings: all affect the results.
    digest = hashlib.sha256(model.to_json().encode())
    for variable in model.variables:
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(json.dumps(settings, sort_keys=True, default=repr).encode())
    return digest.hexdigest()
