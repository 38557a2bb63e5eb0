"""Metadata of exported files: written, and read back.

Keys (all values are text): ``qatline.version``, ``qatline.target``, ``qatline.plan_digest``,
``qatline.quantizers`` (JSON, see ``Recorded``), ``qatline.tensors`` (JSON: Keras layer ->
tensor that holds its output), ``qatline.nodes`` (JSON, see
``qat_lib.onnx_view.identity.Identities``), ``qatline.layout`` (JSON: input name -> ``NHWC``
or ``NCHW``), ``qatline.preprocessing`` (JSON) and ``qatline.preprocessing_embedded``, and whatever
the caller adds (classes, accuracy).

This module needs neither TensorFlow nor Keras nor onnx-ir, so that an engine machine can read it.
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
    """How a weight's DQ node came about.

    Attributes:
        quantizer: name of the quantizer.
        scale: float32 scale as learned, one value or one a channel along the node's axis.
        factor: signed factor that a BatchNormalization put on the scale, one a channel; None when
            none was folded.
        digest: SHA-256 of the int8 weights as they were before the fold (dead channels, factor 0,
            as zeros).
        axis: axis of the scales; None in the record of an older file, which does not say it.
    """

    quantizer: str
    scale: np.ndarray
    factor: np.ndarray | None
    digest: str
    axis: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON types; scales keep every bit."""
        return {
            "quantizer": self.quantizer,
            "scale": pack(self.scale),
            "factor": None if self.factor is None else pack(self.factor),
            "digest": self.digest,
            "axis": self.axis,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RecordedWeight:
        """Return what ``to_dict`` described.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: the data are something else.
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
    """What the export recorded of the Keras model in the file.

    Attributes:
        activations: quantizer -> float32 scale.
        weights: name of the DQ node -> its record.
        disabled: quantizers that were switched off and are therefore not in the graph.
        half: whether scales were rounded to float16.
        readers: name of every DQ node -> its readers, sorted, each as ``<node>:<input>``
            (graph outputs: ``<name>:``); None in the record of an older file, which does not say
            it.
        unsigned: names of the DQ nodes that read UINT8; None in the record of an older file, which
            does not say it.
    """

    activations: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, RecordedWeight] = field(default_factory=dict)
    disabled: tuple[str, ...] = ()
    half: bool = False
    readers: Mapping[str, tuple[str, ...]] | None = None
    unsigned: tuple[str, ...] | None = None

    def to_json(self) -> str:
        """Return the JSON text; scales keep every bit."""
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
        """Read what ``to_json`` wrote.

        Raises:
            ExportError: the text is something else.
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
    return base64.b64encode(np.ascontiguousarray(array, "<f4").tobytes()).decode("ascii")


def unpack(text: str) -> np.ndarray:
    """Return the float32 values of ``pack``, as a vector.

    Raises:
        ValueError: the text is no base64 of float32 values.
    """
    return np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)


def integer_digest(integers: np.ndarray, factor: np.ndarray | None, axis: int) -> str:
    """Return the SHA-256 of INT8 weights.

    Channels with factor 0 count as zeros.
    """
    if factor is not None and integers.ndim:
        along = np.expand_dims(np.ravel(factor), [i for i in range(integers.ndim) if i != axis])
        integers = np.where(along == 0, np.int8(0), integers)
    return hashlib.sha256(np.ascontiguousarray(integers, np.int8).tobytes()).hexdigest()
