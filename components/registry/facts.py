"""Tags and description of a registered version."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from qat_lib.engines import get_backend
from qat_lib.engines.spec import BACKENDS
from qatline.components.artifacts.metric import Metric, read_metric
from qatline.components.artifacts.promotion import Verdict, describe_verdict
from qatline.components.artifacts.result_row import ResultRow
from qatline.components.registry.registry import CHANCE, EVALUATION, INPUTS, RUN, VERDICT
from qatline.components.store.step_store import RUN_VARIABLE, this_process

INPUTS_VARIABLE = "QATLINE_INPUTS"
"""Environment variable with the fingerprint of data, code and settings of a run."""

FAILED = "qatline.failed"
JUDGED_AGAINST = "qatline.judged_against"
QUALITY, METRIC = "qatline.quality", "qatline.metric"
LATENCY, THROUGHPUT = "qatline.latency_ms", "qatline.throughput"
SIZE, BACKEND, TARGET = "qatline.engine_bytes", "qatline.backend", "qatline.target"
DATA, FRAMEWORK = "qatline.data", "qatline.framework"

_MOST_REASONS = 2000  # characters


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Properties of a candidate besides its verdict.

    Attributes:
        row: measurements of its engine.
        target: backend of the export; graphs exported for ``tensorrt`` run in every backend.
        data: fingerprint of the data.
        samples: number of test samples.
        framework: framework of the FP32 model.
        model: name of the FP32 model.
    """

    row: ResultRow
    target: str = ""
    data: str = ""
    samples: int = 0
    framework: str = ""
    model: str = ""

    def tags(self, verdict: Verdict) -> dict[str, str]:
        """Return the tags of the version, including the verdict and the compared champion."""
        passed = {reason.check: reason.passed for reason in verdict.reasons}
        figures = {
            QUALITY: self.row.value,
            LATENCY: self.row.latency_ms_p50,
            THROUGHPUT: self.row.throughput,
            SIZE: self.row.bytes,
        }
        tags = {
            RUN: name_of_run(),
            VERDICT: verdict.verdict,
            FAILED: ", ".join(verdict.failed),
            CHANCE: str(passed.get("chance", False)).lower(),
            EVALUATION: verdict.evaluation,
            JUDGED_AGAINST: verdict.champion or "none",
            BACKEND: self.row.backend,
            TARGET: self.target,
            DATA: self.data,
            FRAMEWORK: self.framework,
            METRIC: self.row.metric.model_dump_json(),
            INPUTS: os.environ.get(INPUTS_VARIABLE, ""),
        }
        for name, value in figures.items():
            if value is not None:
                tags[name] = f"{value:.6g}"
        # An empty ``FAILED`` is kept: it clears the tag of an earlier verdict on the same version.
        return {name: text for name, text in tags.items() if text or name == FAILED}

    def describe(self, verdict: Verdict) -> str:
        """Return the description of the version."""
        metric = self.row.metric
        lines = [
            f"{self.model or 'Model'} in INT8, quantized by qatline.",
            f"{metric.heading} {metric.text(self.row.value)} on {self.samples} test samples; "
            f"latency at batch 1 {_milliseconds(self.row.latency_ms_p50)} with {self.row.backend or 'no engine'}.",
            _target_sentence(self.target),
            f"Data {self.data[:12] or 'unknown'}, run {name_of_run()}.",
            describe_verdict(verdict)[:_MOST_REASONS],
        ]
        return "\n\n".join(lines)


def name_of_run() -> str:
    """Return the name of this process's run, or an empty string."""
    return os.environ.get(RUN_VARIABLE) or os.environ.get("QATLINE_PIPELINE_RUN_ID") or ""


def this_run() -> str:
    """Return the run and process that own a lock or perform a promotion."""
    return this_process()


def this_user() -> str:
    """Return the user and machine that perform a manual promotion."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        user = "unknown user"
    return f"{user} on {socket.gethostname()}"


def _target_sentence(target: str) -> str:
    if target not in BACKENDS:
        return "The backend that it was exported for is unknown."
    if not (backend := get_backend(target)).supports("unsigned"):
        return f"Exported for {backend.title}; it runs in every backend."
    return f"Exported for {target}: a model for CPUs, not for TensorRT."


def _milliseconds(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3g} ms"


def tag_number(tags: Mapping[str, str], name: str) -> float | None:
    """Return the number in a tag, or None if it is missing or not a number."""
    try:
        return float(tags[name])
    except (KeyError, ValueError):
        return None


def tag_metric(tags: Mapping[str, str]) -> Metric:
    """Return the description of the primary metric of a version."""
    return read_metric(tags.get(METRIC, ""))
