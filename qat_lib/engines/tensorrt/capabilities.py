"""What differs between the supported TensorRT versions, in one table.

Facts are read from the bindings' API surface (see the snapshots in the tests), not from release
notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qat_lib.errors import BackendUnavailableError
from qat_lib.options import WeightForm


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """One row: a major version as this library uses it.

    Args:
        major: the major version.
        minimum: first (major, minor) that is supported.
        network_flags: names of ``NetworkDefinitionCreationFlag`` that a network is created with.
        strongly_typed: precision comes from the graph's types alone; if not, it is asked for by
            ``int8_flags``, or by ``fp16_flags`` for graphs without Q/DQ pairs.
        int8_flags: names of ``BuilderFlag`` for a graph with Q/DQ pairs.
        fp16_flags: likewise where FP16 is asked for.
        weights: the forms of quantized weights that the parser takes: INT8 + DQ, or FP32 + Q + DQ.
        memory_property: name of ``ICudaEngine``'s property for the memory that one context needs.
        parser_names_nodes: whether a parser error knows the node's name and operator, or only its
            index.
        progress_monitor: whether a build reports progress and can be cancelled.
        preview_features: names of ``PreviewFeature`` to switch on: execution contexts that share
            the one optimization profile, which is how several threads run an engine, are a matter
            of course only from 10 on.
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
