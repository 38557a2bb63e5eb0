"""Accuracy cost of single layers in INT8: the short form of a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence

from qatline.components.artifacts.record import Measured, Record, Text


class LayerCost(Record):
    """Effect on the outputs of quantizing a single layer, separately for weights and inputs.

    ``cause`` is the cause, if one was found.
    """

    layer: Text = ""
    weights: Measured = None
    inputs: Measured = None
    cause: Text = ""


class LayerCosts(Record):
    """The short form of a diagnosis; see ``qat_lib.Diagnosis``."""

    measure: Text = ""
    total: Measured = None
    samples: Measured = None
    layers: Sequence[LayerCost] = ()
