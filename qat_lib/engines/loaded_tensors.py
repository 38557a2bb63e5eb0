"""Compare the inputs and outputs of a manifest with those of the loaded engine."""

from __future__ import annotations

from collections.abc import Sequence

from qat_lib.engines.manifest import EngineManifest
from qat_lib.engines.values import TensorInfo
from qat_lib.errors import EngineLoadError


def check_tensors(
    manifest: EngineManifest, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
) -> None:
    """Reject an engine whose inputs and outputs contradict its manifest.

    Args:
        manifest: the engine's manifest.
        inputs: the inputs reported by the backend, in any order; None is an open dimension.
        outputs: the outputs, in the same form.

    Raises:
        EngineLoadError: a name, a dtype, a rank or a fixed dimension differs.
    """
    for side, said, found in (
        ("input", manifest.inputs, inputs),
        ("output", manifest.outputs, outputs),
    ):
        known = {info.name: info for info in found}
        if len(found) != len(said) or any(not _agree(info, known.get(info.name)) for info in said):
            raise EngineLoadError(
                f"The manifest does not belong to the engine. Its {side}s: {_listed(said)}; the "
                f"engine's: {_listed(found)}. Copy both files again, or build the engine again."
            )


def _agree(said: TensorInfo, found: TensorInfo | None) -> bool:
    if found is None or said.dtype != found.dtype:
        return False
    if () in (said.shape, found.shape):  # a scalar, or an unknown shape in ONNX
        return True
    if len(said.shape) != len(found.shape):
        return False
    for one, other in zip(said.shape, found.shape, strict=True):
        if None not in (one, other) and one != other:
            return False
    return True


def _listed(infos: Sequence[TensorInfo]) -> str:
    return "; ".join(map(str, infos)) or "none"
