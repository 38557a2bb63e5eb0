"""Advice for models other than classifiers.

A separate module, since several commands reject such models.
"""

from __future__ import annotations

OTHER_TASKS = (
    "qatline evaluate and finetune take classifiers with one input. For regression, segmentation, "
    "several labels or several inputs use qatline run with task.name (docs/tasks.md), or call the "
    'library; see docs/library.md, "Models that are not classifiers".'
)
"""Path to an INT8 engine for other models; the end of every message that rejects one."""
