"""Report errors to users: one message on stderr, one exit code."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from qat_lib.errors import MissingPackageError, QatlineError, StorageError
from qat_lib.support.extras import missing_hint
from qatline.components.support.credentials import scrub
from qatline.components.support.disk_errors import is_disk_full

_BUG = "This is a bug in qatline. Run again with --debug and report the traceback."


@contextmanager
def reported(*, debug: bool = False, as_json: bool = False) -> Iterator[None]:
    """Turn an exception into its message and exit code.

    The traceback is shown only with ``debug``. With ``as_json`` the object ``{"error": {...}}``
    also goes to stdout, so that a caller that parses stdout always finds one object there.
    """
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt as error:
        _say("Interrupted.")
        raise typer.Exit(130) from error
    # Whoever read stdout has gone; Python would say so again at its own end.
    except BrokenPipeError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from error
    except Exception as error:
        known = _known(error)
        if debug:
            _say(traceback.format_exc())
            tail = getattr(error, "log_tail", "")
            if tail:
                _say(f"The end of the log:\n{tail}\n")
        _say(f"Error: {known}" if known else f"Error: {type(error).__name__}: {error}\n{_BUG}")
        if as_json:
            sys.stdout.write(json.dumps(_as_object(known or error)) + "\n")
        raise typer.Exit(known.exit_code if known else 1) from error


def _known(error: Exception) -> QatlineError | None:
    """Return an error the user can act on; None for a bug."""
    if isinstance(error, QatlineError):
        return error
    if isinstance(error, ImportError) and (hint := missing_hint(error)) is not None:
        return MissingPackageError(hint)
    if is_disk_full(error):
        return StorageError(
            f"the disk is full, or a file reached the limit of its size: {error}. Free some space, "
            "or choose another place."
        )
    # Of a file that the user named, or of the disk.
    if isinstance(error, OSError) and error.filename is not None:
        return StorageError(
            f"{error.filename}: {error.strerror or error}. Check the path, its rights and the disk."
        )
    return None


def _as_object(error: Exception) -> dict[str, Any]:
    content: dict[str, Any] = {
        "error": {"type": type(error).__name__, "message": scrub(str(error))}
    }
    folder = getattr(error, "folder", None)
    if folder is not None:
        content = {"run_id": folder.run_id, "run_dir": str(folder.path), **content}
        content["error"]["step"] = getattr(error, "step", None) or None
    return content


def _say(text: str) -> None:
    sys.stderr.write(scrub(text) + "\n")
