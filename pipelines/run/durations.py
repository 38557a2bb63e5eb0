"""Expected duration of each step, for the estimate of a run's remaining time."""

from __future__ import annotations

from qat_lib.errors import QatlineError
from qatline.pipelines.config.run_config import RunConfig
from qatline.pipelines.run.event_tail import EventTail
from qatline.pipelines.run.folder import RunFolder, run_folders

# Seconds of the default run on two cores of an AMD EPYC with AVX2.
_DEFAULT_RUN = {
    "prepare_data": 8.0,
    "train_baseline": 60.0,
    "quantize_model": 20.0,
    "finetune_qat": 45.0,
    "export_onnx": 30.0,
    "build_engine": 8.0,
    "evaluate": 15.0,
    "promote": 5.0,
}

_LOOKED_AT = 20  # runs; a folder of sweeps has hundreds
# Sections that determine most of a run's duration.
_TIMED = ("data", "task", "model", "training", "quantization", "qat")


def expected_seconds(folder: RunFolder) -> dict[str, float]:
    """Return the expected seconds of each step; empty if unknown.

    The source is the latest finished run next to ``folder`` with the same data, model and training;
    for the default run, a measurement.
    """
    config = folder.config()
    for earlier in reversed(run_folders(folder.path.parent)[-_LOOKED_AT:]):
        try:
            same = earlier.path != folder.path and _is_same(earlier.config(), config)
            if same and earlier.result_file.exists() and (found := measured_seconds(earlier)):
                return found
        except (QatlineError, OSError, LookupError, TypeError, ValueError):
            continue  # a damaged run gives no estimate
    return dict(_DEFAULT_RUN) if _is_same(RunConfig(), config) else {}


def measured_seconds(folder: RunFolder) -> dict[str, float]:
    """Return the seconds from each step's start to the next; empty if a step was reused."""
    starts: dict[str, float] = {}
    end = 0.0
    for event in EventTail(path=folder.events_file).read():
        name = str(event.get("step") or "")
        if event.get("event") == "pipeline_started":
            starts = {}
        elif event.get("event") == "step_started":
            starts[name] = float(event["time"])
        elif event.get("event") == "step_finished":
            if event.get("status") == "reused":
                return {}
            end = float(event["time"])
    later = [*starts.values(), end][1:]
    return {name: after - start for (name, start), after in zip(starts.items(), later, strict=True)}


def _is_same(one: RunConfig, other: RunConfig) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _TIMED)
