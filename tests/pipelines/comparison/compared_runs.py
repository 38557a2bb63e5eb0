"""Three runs for comparisons, as MLflow would give them."""

from qat_lib.core.plan import QuantizationPlan, QuantizerEntry
from qatline.components.artifacts import ResultRow
from qatline.pipelines.comparison.tracked_runs import TrackedRun


def make_plan(num_bits: int = 8) -> QuantizationPlan:
    """Return a plan with one quantizer."""
    entry = QuantizerEntry(name="q", kind="activation", tensor="conv:0", num_bits=num_bits)
    return QuantizationPlan(model="m", mode="full", quantizers=(entry,), skipped=())


def make_run(name: str, accuracy: float, latency: float, **values: object) -> TrackedRun:
    """Return a run with an FP32 engine and a QAT engine."""
    rows = {
        "fp32_engine": ResultRow(accuracy=0.9, latency_ms_p50=4.0, bytes=4000),
        "qat_engine": ResultRow(accuracy=accuracy, latency_ms_p50=latency, bytes=1000),
    }
    return TrackedRun(name=name, mlflow_id=name, rows=rows, **values)  # type: ignore[arg-type]


def three_runs() -> list[TrackedRun]:
    """Return three runs that differ in one setting."""
    runs = []
    for index, name in enumerate(("low", "middle", "<high>")):
        params = {"qat.epochs": str(index), "seed": "0", "output": name, "qatline.parent": name}
        curve = [(epoch, 1.0 / (epoch + index)) for epoch in range(1, 4)]
        runs.append(
            make_run(
                name,
                0.8 + index / 100,
                1.0 + index,
                params=params,
                curves={"finetune_qat/val_loss": curve},
                status="FINISHED",
                started="2026-01-02T03:04:05+00:00",
                plan=make_plan(num_bits=4 if index == 2 else 8),
            )
        )
    return runs
