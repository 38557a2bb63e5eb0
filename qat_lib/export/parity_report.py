"""Parity report: difference between ONNX and the model, overall and by layer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class LayerDifference:
    """Difference between the output of a Keras layer and its ONNX tensor."""

    layer: str
    tensor: str
    largest: float
    mean: float
    magnitude: float


@dataclass(frozen=True, kw_only=True)
class ParityReport:
    """Result of ``qat_lib.keras.export.parity.check_parity``.

    Attributes:
        samples: number of samples compared.
        largest_difference: largest absolute difference of any floating-point output.
        mean_difference: mean absolute difference.
        magnitude: largest absolute output of Keras.
        labels_equal: samples whose label (index of the largest output) is the same in both; None
            without an output of shape ``(batch, classes)``.
        ties: samples with different labels and two candidates within ``step`` of each other in
            Keras.
        mismatches: samples with different labels that are not ties.
        step: one quantization step of the logits: their largest magnitude over 127 (times 1e-5 for
            a model without quantizers). Closer logits are a tie: float rounding may decide either
            way, because it moves values across the boundary between two integers anywhere in the
            network.
        noise: change of Keras's own logits for an input change by float rounding; measured only for
            different labels. It widens ``step``, because an export can't reproduce Keras's logits
            more exactly than Keras itself.
        tolerance: allowed ``largest_difference`` relative to ``magnitude``; None for a quantized
            model in float32, where labels decide.
        difference: difference of the output closest to its bound, relative to the spread of its
            values (see ``qat_lib.support.answers``); for integers the share of unequal values.
            Default 0.0.
        allowed: largest allowed ``difference``, explained by rounding in this model. Default 1.0.
        labels_decide: whether mismatches fail the comparison. False for a file in float16, which
            rounds every tensor between two layers and thereby changes close labels. Default True.
        layers: differences by layer, in graph order; empty unless requested.
        framework: compared framework, "Keras" or "PyTorch"; the text above uses Keras for either.
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
    labels_decide: bool = True
    layers: tuple[LayerDifference, ...] = field(default=())
    framework: str = "Keras"

    @property
    def passed(self) -> bool:
        """Whether labels agree, except for ties, and outputs are within their bounds."""
        if self.mismatches and self.labels_decide:
            return False
        if not np.isfinite(self.largest_difference):
            return False
        if self.difference > self.allowed:
            return False
        return self.tolerance is None or self.largest_difference <= self.tolerance * max(
            self.magnitude, 1e-6
        )

    def first_difference(self, relative: float = 1e-3) -> LayerDifference | None:
        """Return the first layer with a difference above ``relative`` times its magnitude."""
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
        """Return a one-sentence summary."""
        labels = ""
        if self.labels_equal is not None:
            labels = f", labels equal on {self.labels_equal} ({self.ties} ties)"
        verdict = "agrees" if self.passed else "does NOT agree"
        difference = f"largest difference {self.largest_difference:.3g}"
        share = f" ({self.difference:.2g} of the spread; allowed: {self.allowed:.2g})"
        return f"{verdict} with {self.framework} on {self.samples} samples: {difference}{share}{labels}"
