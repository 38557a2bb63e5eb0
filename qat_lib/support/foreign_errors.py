"""Quote other libraries' exceptions in a message."""

from __future__ import annotations

import re

_LONGEST = 2_000
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Keras puts a layer's whole configuration before the reason, torch.fx the trace of its program
# behind it.
_BEFORE_REASON = re.compile(r".*Exception encountered: ", re.DOTALL)
_BEHIND_REASON = re.compile(r"\n+While executing %.*", re.DOTALL)


def describe_error(error: BaseException) -> str:
    """Return an exception's text on one line, without colours, preambles and traces."""
    text = _BEHIND_REASON.sub("", _BEFORE_REASON.sub("", _ANSI.sub("", str(error))))
    text = " ".join(text.split()).rstrip(".")
    if len(text) > _LONGEST:
        text = text[:_LONGEST] + " ..."
    return text or type(error).__name__
