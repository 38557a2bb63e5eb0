"""Agreement of the readers of one tensor on its single quantizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qat_lib.errors import SpecError


def agreed(configs: Sequence[Any], key: str, tensor: str) -> Any:
    """Return the one value that the readers of a tensor ask for.

    Raises:
        SpecError: two readers ask for different values, but a tensor has one quantizer.
    """
    values = {getattr(config, key) for config in configs} - {None}
    if len(values) > 1:
        raise SpecError(
            f"The readers of tensor {tensor!r} ask for different values of {key}: "
            f"{sorted(map(str, values))}. "
            "A tensor has one quantizer, so give them the same."
        )
    return values.pop() if values else None
