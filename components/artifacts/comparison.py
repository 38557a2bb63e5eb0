"""Test results: a candidate against the champion and against chance."""

from __future__ import annotations

from collections.abc import Sequence

from qatline.components.artifacts.record import Measured, Record, Text
from qatline.components.artifacts.result_row import ResultRow


class PairedTest(Record):
    """Paired test of two networks on the same samples.

    Attributes:
        name: name of the test.
        only_candidate, only_champion: samples predicted correctly by this network only; None for
            tasks without right and wrong predictions.
        difference: primary metric of the candidate minus the champion's.
        low, high: 95 % interval of the difference.
        p_better, p_worse: one-sided p-values of a better and of a worse candidate.
    """

    name: Text = "McNemar's test"
    samples: int = 0
    only_candidate: int | None = None
    only_champion: int | None = None
    difference: Measured = None
    low: Measured = None
    high: Measured = None
    p_better: Measured = None
    p_worse: Measured = None


class GroupTest(Record):
    """Primary metric on one class or other group.

    ``p_worse`` is corrected for the number of groups; None without a test.
    """

    name: str | int = ""
    samples: int = 0
    candidate: Measured = None
    champion: Measured = None
    p_worse: Measured = None


class ChanceTest(Record):
    """Test of a network against chance.

    Attributes:
        value: value of the primary metric.
        chance: expected value of the same outputs if they were independent of the targets.
        p_value: probability of at least this value by chance.
        test: name and level of the test.
    """

    samples: int = 0
    value: Measured = None
    chance: Measured = None
    p_value: Measured = None
    test: Text = ""


class ChampionComparison(Record):
    """A candidate and the champion on the same test part, with engines on the same machine.

    Attributes:
        version: version of the champion, or None.
        digest: SHA-256 of the champion's ONNX file; empty without a champion.
        same: whether the candidate is the champion.
        problem: reason for a missing comparison; empty otherwise.
        groups: the test on each class or other group; None if not measured, empty for tasks without
            groups.
        candidate, champion: quality, latency, throughput and size.
    """

    version: int | None = None
    digest: Text = ""
    same: bool = False
    problem: Text = ""
    candidate: ResultRow = ResultRow()
    champion: ResultRow = ResultRow()
    test: PairedTest = PairedTest()
    groups: Sequence[GroupTest] | None = None
