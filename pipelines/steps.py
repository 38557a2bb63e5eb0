"""The steps of the main pipeline, in order, and the artifact that each one hands on."""

from __future__ import annotations

STEP_ARTIFACTS: dict[str, str] = {
    "prepare_data": "dataset",
    "train_baseline": "baseline",
    "quantize_model": "ptq",
    "finetune_qat": "qat",
    "export_onnx": "onnx",
    "build_engine": "engines",
    "evaluate": "evaluation",
    "promote": "promotion",
}


def step_of_task(task: str) -> str:
    """Return the step's name of a KFP task: ``train-baseline-component`` is ``train_baseline``."""
    return task.removesuffix("-component").replace("-", "_")
