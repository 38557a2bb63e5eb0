"""Checks that authors of extensions run in their own tests.

```python
from qatline.components.testing import check_task

def test_my_task():
    check_task(Counting(), outputs, targets)
```
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from qatline.components.tasks.task import Outputs, Task, joined, rows_of, samples_of


def check_task(task: Task, outputs: Outputs, targets: Any) -> None:
    """Check that a task fulfils the pipeline's interface.

    Args:
        task: the task, with ``data`` set if it uses it.
        outputs: outputs of a network that is better than chance on the targets, ``(samples, ...)``,
            an array or several by name; at least 20 samples.
        targets: the targets of the same samples.

    Raises:
        AssertionError: a check fails; the message says what was expected.
    """
    samples = samples_of(outputs)
    assert samples >= 20, f"expected at least 20 samples to check with, received {samples}"
    checked = np.asarray(task.check_targets(np.asarray(targets), "the targets"))
    assert len(checked) == samples, (
        f"check_targets: expected {samples} targets, received {len(checked)}"
    )
    _check_statistics(task, outputs, checked, samples)
    _check_summary(task, outputs, checked, samples)
    _check_tests(task, outputs, checked)
    _check_words(task, outputs, checked)


def _check_statistics(task: Task, outputs: Outputs, targets: Any, samples: int) -> None:
    for name, values in task.measure(outputs, targets).items():
        assert len(values) == samples, (
            f"measure: expected a value of {name} for each of {samples} samples, received "
            f"{len(values)}"
        )


def _check_summary(task: Task, outputs: Outputs, targets: Any, samples: int) -> None:
    whole = task.summarize(task.measure(outputs, targets))
    names = [metric.name for metric in task.metrics]
    assert list(whole) == names, (
        f"summarize: expected the metrics {names} in this order, received {list(whole)}"
    )
    cuts = (slice(0, 3), slice(3, samples))
    parts = [task.measure(rows_of(outputs, rows), targets[rows]) for rows in cuts]
    in_batches = task.summarize(joined(parts))
    for name, value in whole.items():
        assert np.isfinite(value), f"summarize: expected a finite {name}, received {value}"
        assert np.isclose(in_batches[name], value, rtol=1e-6, atol=1e-9), (
            f"measure: the {name} of two batches must be that of all samples at once, {value}; it "
            f"is {in_batches[name]}. The statistics of a sample must not depend on its batch."
        )


def _check_tests(task: Task, outputs: Outputs, targets: Any) -> None:
    found = task.measure(outputs, targets)
    same = task.compare(found, found)
    assert (same.p_better or 0) > 0.05, "compare: a network is significantly better than itself"
    assert (same.p_worse or 0) > 0.05, "compare: a network is significantly worse than itself"
    shuffled = task.measure(outputs, np.roll(targets, 1, axis=0))
    chance = task.compare_with_chance(found, shuffled)
    metric = task.primary
    assert chance.p_value is not None, "compare_with_chance: expected a p-value"
    assert chance.p_value <= 0.05, (
        f"compare_with_chance: expected outputs better than chance, received {metric.name}="
        f"{chance.value:g} against {chance.chance:g} by chance (p={chance.p_value:.2g}). Is "
        f"higher_is_better={metric.higher_is_better} right?"
    )
    for ours in task.compare_groups(found, found):
        assert ours.candidate == ours.champion, "compare_groups: equal networks differ"


def _check_words(task: Task, outputs: Outputs, targets: Any) -> None:
    found = task.measure(outputs, targets)
    json.dumps(task.details(found))
    for group in task.groups(found):
        assert group.samples or group.value is None, (
            f"groups: expected None for {group.name}, which has no samples; received {group.value}"
        )
    assert task.describe(outputs, 0), "describe: expected a few words"
    assert task.describe_target(targets[0]), "describe_target: expected a few words"
    differences = task.differences(outputs, outputs)
    assert not np.any(differences), "differences: equal outputs differ"
