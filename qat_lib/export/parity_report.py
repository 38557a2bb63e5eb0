"""Parity report: difference between ONNX and the model, overall and by layer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class LayerDifference:
    """Difference between a Keras layer's output and its ONNX tensor."""

    layer: str
    tensor: str
    largest: float
    mean: float
    magnitude: float


@dataclass(frozen=True, kw_only=True)
class ParityReport:
    """What ``qat_lib.keras.export.parity.check_parity`` found.

    Attributes:
        samples: number of samples compared.
        largest_difference: largest absolute difference of any output that is not of integers.
        mean_difference: mean absolute difference.
        magnitude: largest absolute output of Keras.
        labels_equal: samples whose label (index of the largest output) is the same in both; None
            when the model has no output of shape ``(batch, classes)``.
        ties: samples with another label whose two candidates lie within ``step`` of each other in
            Keras.
        mismatches: samples with another label that is no tie.
        step: one quantization step of the logits: their largest magnitude over 127 (of a model
            without quantizers: times 1e-5). Logits closer than that are a tie, which float rounding
            may decide either way, because it moves values that lie on the edge between two integers
            anywhere in the network.
        noise: how far Keras's own logits move when its input moves by float rounding; measured only
            where labels differ. It widens ``step``: what Keras can't hold still, an export can't be
            asked to reproduce.
        tolerance: allowed ``largest_difference`` of a model without quantizers, relative to
            ``magnitude``; None for a quantized one, whose labels decide.
        difference: difference of the output that is nearest to what is allowed, relative to the spread of
            its values (see ``qat_lib.engines.agreement``); of integers the share of unequal ones.
            Default 0.0.
        allowed: largest allowed ``difference``: what rounding explains in this model. Default 1.0.
        layers: differences by layer, in graph order; empty unless asked for.
        framework: what ONNX was compared with, "Keras" or "PyTorch"; where the text above says
            Keras, this is meant.
    """

    samples: int
    largest_difference: float
    mean_difference: float
    magnitude: float
    labels_equal: int | None
    ties: int
    mismatches: int
    step: float
    noise: float
    tolerance: float | None
    difference: float = 0.0
    allowed: float = 1.0
    layers: tuple[LayerDifference, ...] = field(default=())
    framework: str = "Keras"

    @property
    def passed(self) -> bool:
        """Whether labels agree, but for ties, and outputs within what is allowed."""
        if self.mismatches or not np.isfinite(self.largest_difference):
            return False
        if self.difference > self.allowed:
            return False
        return self.tolerance is None or self.largest_difference <= self.tolerance * max(
            self.magnitude, 1e-6
        )

    def first_difference(self, relative: float = 1e-3) -> LayerDifference | None:
        """Return the first layer whose difference exceeds ``relative`` times its magnitude."""
        for layer in self.layers:
            if layer.largest > relative * max(layer.magnitude, 1e-12):
                return layer
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, ``passed`` included."""
        values = asdict(self)
        del values["framework"]
        return {**values, "passed": self.passed}

    def __str__(self) -> str:
        """Return one sentence."""
        labels = ""
        if self.labels_equal is not None:
            labels = f", labels equal on {self.labels_equal} ({self.ties} ties)"
        verdict = "agrees" if self.passed else "does NOT agree"
        difference = f"largest difference {self.largest_difference:.3g}"
        share = f" ({self.difference:.2g} of the spread; allowed: {self.allowed:.2g})"
        return f"{verdict} with {self.framework} on {self.samples} samples: {difference}{share}{labels}"
