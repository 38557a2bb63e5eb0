"""Test results: a candidate against the champion and against chance."""

from __future__ import annotations

from collections.abc import Sequence

from qatline.components.artifacts.record import Measured, Record, Text
from qatline.components.artifacts.result_row import ResultRow


class PairedTest(Record):
    """McNemar's exact test of two classifiers on the same samples.

    Attributes:
        only_candidate, only_champion: samples predicted correctly by this classifier only.
        difference: accuracy of the candidate minus the champion's.
        low, high: 95 % interval of the difference.
        p_better, p_worse: one-sided p-values of a better and of a worse candidate.
    """

    samples: int = 0
    only_candidate: int = 0
    only_champion: int = 0
    difference: Measured = None
    low: Measured = None
    high: Measured = None
    p_better: Measured = None
    p_worse: Measured = None


class ClassTest(Record):
    """Accuracies on one class; ``p_worse`` is corrected for the number of classes."""

    name: str | int = ""
    samples: int = 0
    candidate: Measured = None
    champion: Measured = None
    p_worse: Measured = None


class ChanceTest(Record):
    """Permutation test of a classifier against chance.

    Attributes:
        accuracy: share of correct predictions.
        chance: expected accuracy of the same predictions if they were independent of the labels.
        p_value: frequency of at least this accuracy with shuffled labels.
    """

    samples: int = 0
    accuracy: Measured = None
    chance: Measured = None
    p_value: Measured = None


class ChampionComparison(Record):
    """A candidate and the champion on the same test part, with engines on the same machine.

    Attributes:
        version: version of the champion, or None.
        digest: SHA-256 of the champion's ONNX file; empty without a champion.
        same: whether the candidate is the champion.
        problem: reason for a missing comparison; empty otherwise.
        candidate, champion: accuracy, latency, throughput and size.
    """

    version: int | None = None
    digest: Text = ""
    same: bool = False
    problem: Text = ""
    candidate: ResultRow = ResultRow()
    champion: ResultRow = ResultRow()
    test: PairedTest = PairedTest()
    classes: Sequence[ClassTest] = ()
