"""Table of the differences between the supported TensorRT versions.

The source is the API surface of the bindings (see the snapshots in the tests), not the release
notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qat_lib.errors import BackendUnavailableError
from qat_lib.options import WeightForm


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Row of the table, for one major version.

    Args:
        major: the major version.
        minimum: first supported (major, minor).
        network_flags: names of ``NetworkDefinitionCreationFlag`` for new networks.
        strongly_typed: whether precision comes from the graph's types only; otherwise it is
            selected by ``int8_flags``, or by ``fp16_flags`` for graphs without Q/DQ pairs.
        int8_flags: names of ``BuilderFlag`` for graphs with Q/DQ pairs.
        fp16_flags: names of ``BuilderFlag`` for FP16.
        weights: forms of quantized weights supported by the parser: INT8 + DQ, or FP32 + Q + DQ.
        memory_property: name of ``ICudaEngine``'s property for the memory of one context.
        parser_names_nodes: whether a parser error contains the node's name and operator, or only
            its index.
        progress_monitor: whether a build reports progress and can be cancelled.
        preview_features: names of ``PreviewFeature`` to enable. Execution contexts with a shared
            optimization profile, required for several threads, are the default only from 10 on.
    """

    major: int
    minimum: tuple[int, int]
    network_flags: tuple[str, ...]
    strongly_typed: bool
    int8_flags: tuple[str, ...]
    fp16_flags: tuple[str, ...]
    weights: tuple[WeightForm, ...]
    memory_property: str
    parser_names_nodes: bool
    progress_monitor: bool
    preview_features: tuple[str, ...] = ()


TABLE: tuple[Capabilities, ...] = (
    Capabilities(
        major=8,
        minimum=(8, 6),
        network_flags=("EXPLICIT_BATCH",),
        strongly_typed=False,
        int8_flags=("INT8", "FP16"),
        fp16_flags=("FP16",),
        weights=("qdq",),
        memory_property="device_memory_size",
        parser_names_nodes=False,
        progress_monitor=False,
        preview_features=("PROFILE_SHARING_0806",),
    ),
    Capabilities(
        major=10,
        minimum=(10, 12),
        network_flags=("STRONGLY_TYPED",),
        strongly_typed=True,
        int8_flags=(),
        fp16_flags=(),
        weights=("int8", "qdq"),
        memory_property="device_memory_size_v2",
        parser_names_nodes=True,
        progress_monitor=True,
    ),
    Capabilities(
        major=11,
        minimum=(11, 0),
        network_flags=("STRONGLY_TYPED",),
        strongly_typed=True,
        int8_flags=(),
        fp16_flags=(),
        weights=("int8", "qdq"),
        memory_property="device_memory_size_v2",
        parser_names_nodes=True,
        progress_monitor=True,
    ),
)


def capabilities_of(version: str, table: Sequence[Capabilities] = TABLE) -> Capabilities:
    """Return the row for a version such as ``10.16.1.11``.

    Raises:
        BackendUnavailableError: the version is not supported.
    """
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    for row in table:
        if len(numbers) == 2 and numbers[0] == row.major and numbers >= row.minimum:
            return row
    raise BackendUnavailableError(
        f"TensorRT {version} is installed; supported are 8.6, 10.12 and newer, and 11. Install one "
        "of these."
    )
