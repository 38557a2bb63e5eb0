"""Metadata of exported files: writing and reading.

Keys (all values are text): ``qatline.version``, ``qatline.target``, ``qatline.plan_digest``,
``qatline.quantizers`` (JSON, see ``Recorded``), ``qatline.tensors`` (JSON: Keras layer -> output
tensor), ``qatline.nodes`` (JSON, see ``qat_lib.onnx_view.identity.Identities``), ``qatline.layout``
(JSON: name of an input or output -> axis order, such as ``NHWC``), ``qatline.preprocessing`` (JSON)
and ``qatline.preprocessing_embedded``, and the caller's own entries (classes, accuracy).

This module requires neither TensorFlow nor Keras nor onnx-ir, so that an engine machine can read
the metadata.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qat_lib.errors import ExportError
from qat_lib.files.text_files import parse_json
from qat_lib.onnx_view.metadata import PREFIX


@dataclass(frozen=True, kw_only=True)
class RecordedWeight:
    """Origin of a weight's DQ node.

    Attributes:
        quantizer: name of the quantizer.
        scale: learned float32 scale, one value or one per channel along the node's axis.
        factor: signed factor of a folded BatchNormalization, one per channel; None without a fold.
        digest: SHA-256 of the int8 weights before the fold (zeros for dead channels with factor 0).
        axis: axis of the scales; None in the record of an older file.
    """

    quantizer: str
    scale: np.ndarray
    factor: np.ndarray | None
    digest: str
    axis: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON types, with bit-exact scales."""
        return {
            "quantizer": self.quantizer,
            "scale": pack(self.scale),
            "factor": None if self.factor is None else pack(self.factor),
            "digest": self.digest,
            "axis": self.axis,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RecordedWeight:
        """Build a record from the result of ``to_dict``.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: the data has another form.
        """
        factor, axis = data["factor"], data.get("axis")
        return cls(
            quantizer=str(data["quantizer"]),
            scale=unpack(data["scale"]),
            factor=None if factor is None else unpack(factor),
            digest=str(data["digest"]),
            axis=None if axis is None else int(axis),
        )


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Record of the quantized model in an exported file.

    Attributes:
        activations: quantizer -> float32 scale.
        weights: name of the DQ node -> its record.
        disabled: quantizers absent in the graph: disabled, or of tensors that no output depends on.
        half: whether scales were rounded to float16.
        readers: name of every DQ node -> its readers, sorted, each as ``<node>:<input>`` (graph
            outputs: ``<name>:``); None in the record of an older file.
        unsigned: names of the DQ nodes with UINT8 inputs; None in the record of an older file.
    """

    activations: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, RecordedWeight] = field(default_factory=dict)
    disabled: tuple[str, ...] = ()
    half: bool = False
    readers: Mapping[str, tuple[str, ...]] | None = None
    unsigned: tuple[str, ...] | None = None

    def to_json(self) -> str:
        """Return the record as JSON, with bit-exact scales."""
        weights = {node: weight.to_dict() for node, weight in self.weights.items()}
        return json.dumps(
            {
                "version": 1,
                "half": self.half,
                "activations": dict(self.activations),
                "weights": weights,
                "disabled": list(self.disabled),
                "readers": self.readers,
                "unsigned": None if self.unsigned is None else list(self.unsigned),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Recorded:
        """Build a record from the result of ``to_json``.

        Raises:
            ExportError: the text has another form.
        """
        data = parse_json(text, f"The metadata {PREFIX}quantizers", error=ExportError, unique=False)
        try:
            return cls(
                activations={str(k): float(v) for k, v in data["activations"].items()},
                weights={
                    str(node): RecordedWeight.from_dict(weight)
                    for node, weight in data["weights"].items()
                },
                disabled=tuple(map(str, data.get("disabled", ()))),
                half=bool(data.get("half", False)),
                readers=None if data.get("readers") is None else _names_by_node(data["readers"]),
                unsigned=None
                if data.get("unsigned") is None
                else tuple(map(str, data["unsigned"])),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExportError(
                "Expected the quantizers' record of a qatline export in the metadata "
                f"{PREFIX}quantizers. "
                f"It can't be read: {type(error).__name__}: {error}. Export the model again."
            ) from error


def _names_by_node(data: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {str(node): tuple(map(str, names)) for node, names in data.items()}


def pack(array: np.ndarray) -> str:
    """Return float32 values as base64 text."""
    # Bit-exact, and independent of the machine's byte order.
    return base64.b64encode(np.ascontiguousarray(array, "<f4").tobytes()).decode("ascii")


def unpack(text: str) -> np.ndarray:
    """Return the float32 values of ``pack``, as a vector.

    Raises:
        ValueError: the text is not base64 of float32 values.
    """
    return np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)


def integer_digest(integers: np.ndarray, factor: np.ndarray | None, axis: int) -> str:
    """Return the SHA-256 of INT8 weights, with zeros for channels with factor 0."""
    if factor is not None and integers.ndim:
        along = np.expand_dims(np.ravel(factor), [i for i in range(integers.ndim) if i != axis])
        integers = np.where(along == 0, np.int8(0), integers)
    return hashlib.sha256(np.ascontiguousarray(integers, np.int8).tobytes()).hexdigest()
