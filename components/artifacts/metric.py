"""A metric of the test part: title, direction and unit."""

from __future__ import annotations

from collections.abc import Mapping

from qatline.components.artifacts.record import Record


class Metric(Record):
    """A metric by its name in the results.

    Attributes:
        name: name in results, MLflow metrics and messages, such as ``accuracy``.
        title: title in tables; by default the name with spaces.
        higher_is_better: direction.
        share: whether values are shares in [0, 1], displayed in percent.
    """

    name: str
    title: str = ""
    higher_is_better: bool = True
    share: bool = False

    @property
    def label(self) -> str:
        """Title in tables."""
        return self.title or self.name.replace("_", " ")

    def text(self, value: float | None) -> str:
        """Return a value as text."""
        if value is None:
            return "not measured"
        return f"{value:.2%}" if self.share else f"{value:.4g}"

    def change(self, value: float, reference: float) -> str:
        """Return a signed difference: percentage points for shares."""
        difference = value - reference
        return f"{difference * 100:+.2f}" if self.share else f"{difference:+.3g}"

    def loss(self, value: float, reference: float) -> float:
        """Return by how much ``value`` is worse than ``reference``; negative if it is better."""
        return reference - value if self.higher_is_better else value - reference


ACCURACY = Metric(name="accuracy", share=True)

METRICS: Mapping[str, Metric] = {ACCURACY.name: ACCURACY}
"""Metrics of results that were written without a description."""
