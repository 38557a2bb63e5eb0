"""Names that changed: the old one works for one release, with a warning that names the new one."""

from __future__ import annotations

import warnings


def warn_renamed(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn that an argument has a new name.

    Args:
        old: the deprecated name.
        new: the name to use.
        stacklevel: which caller the warning points to. Default 3: who called the function that
            calls this one.
    """
    warnings.warn(
        f"{old} is now {new}; the old name goes with the next release.",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
