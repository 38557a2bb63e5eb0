"""Agreement of the readers of one tensor on its single quantizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qat_lib.errors import SpecError


def agreed(configs: Sequence[Any], key: str, tensor: str) -> Any:
    """Return the one value that the readers of a tensor request, or None.

    Raises:
        SpecError: two readers request different values; a tensor has one quantizer.
    """
    # None means that the reader has no preference.
    values = {getattr(config, key) for config in configs} - {None}
    if len(values) > 1:
        raise SpecError(
            f"The readers of tensor {tensor!r} ask for different values of {key}: "
            f"{sorted(map(str, values))}. "
            "A tensor has one quantizer, so give them the same."
        )
    return values.pop() if values else None
