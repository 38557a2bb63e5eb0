"""A metric of the test part: title, direction and unit."""

from __future__ import annotations

import math

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

    @property
    def heading(self) -> str:
        """Title at the start of a sentence."""
        label = self.label
        return label if label[1:2].isupper() else label[:1].upper() + label[1:]

    @property
    def side(self) -> str:
        """Words before a bound."""
        return "at least" if self.higher_is_better else "at most"

    def amount(self, difference: float) -> str:
        """Return the size of a difference as text."""
        return f"{difference:.2%}" if self.share else f"{difference:g}"

    def change(self, value: float, reference: float) -> str:
        """Return a signed difference: percentage points for shares, else four digits of the value."""
        difference = value - reference
        if self.share:
            return f"{difference * 100:+.2f}"
        magnitude = math.floor(math.log10(abs(reference) or 1.0))
        return f"{difference:+.{min(max(3 - magnitude, 0), 9)}f}"

    def loss(self, value: float, reference: float) -> float:
        """Return by how much ``value`` is worse than ``reference``; negative if it is better."""
        return reference - value if self.higher_is_better else value - reference


ACCURACY = Metric(name="accuracy", share=True)
"""Primary metric of results without a description."""


def read_metric(text: str) -> Metric:
    """Return a metric from its JSON form; ``accuracy`` for a missing or damaged one."""
    try:
        return Metric.model_validate_json(text)
    except ValueError:
        return ACCURACY
