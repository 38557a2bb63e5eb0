"""The main pipeline: from data to a checked INT8 engine, eight steps.

Each parameter is a section of ``RunConfig`` as a dict, so a step reads what it needs and nothing else; what a
step does not read is not part of its cache key.
"""

# No "from __future__ import annotations" here: KFP reads the annotations of a pipeline as objects.

from collections.abc import Callable
from typing import Any

from kfp import dsl

from components.build_engine import build_engine_component
from components.evaluate import evaluate_component
from components.export_onnx import export_onnx_component
from components.finetune_qat import finetune_qat_component
from components.prepare_data import prepare_data_component
from components.promote import promote_component
from components.quantize_model import quantize_model_component
from components.train_baseline import train_baseline_component


def build_pipeline(prepare: Callable[[dsl.PipelineTask], object] = lambda task: None) -> Any:
    """Return the pipeline, each of its tasks shown to ``prepare`` first, which may set what the task's pod gets."""

    def step(task: dsl.PipelineTask) -> Any:
        prepare(task)
        return task.outputs

    @dsl.pipeline(
        name="qatline",
        description="From a Keras model to a checked INT8 engine.",
    )
    def qat_pipeline(
        seed: int = 0,
        data: dict[str, Any] = {},  # noqa: B006  # KFP takes the default from the signature; nothing changes it
        model: dict[str, Any] = {},  # noqa: B006
        training: dict[str, Any] = {},  # noqa: B006
        quantization: dict[str, Any] = {},  # noqa: B006
        qat: dict[str, Any] = {},  # noqa: B006
        export: dict[str, Any] = {},  # noqa: B006
        engine: dict[str, Any] = {},  # noqa: B006
        gate: dict[str, Any] = {},  # noqa: B006
    ) -> None:
        """Chain the eight steps; a section that is left empty has its defaults."""
        dataset = step(prepare_data_component(data=data, seed=seed))["dataset"]
        baseline = step(train_baseline_component(dataset=dataset, model=model, training=training, seed=seed))[
            "baseline"
        ]
        ptq = step(
            quantize_model_component(
                dataset=dataset, baseline=baseline, quantization=quantization, export=export, engine=engine, seed=seed
            )
        )["ptq"]
        qat_model = step(
            finetune_qat_component(dataset=dataset, baseline=baseline, ptq=ptq, qat_settings=qat, seed=seed)
        )["qat"]
        onnx = step(
            export_onnx_component(
                dataset=dataset, baseline=baseline, ptq=ptq, qat=qat_model, export=export, engine=engine, seed=seed
            )
        )["onnx"]
        engines = step(build_engine_component(onnx=onnx, dataset=dataset, engine=engine, seed=seed))["engines"]
        evaluation = step(
            evaluate_component(dataset=dataset, baseline=baseline, onnx=onnx, engines=engines, engine=engine, seed=seed)
        )["evaluation"]
        step(
            promote_component(
                dataset=dataset,
                baseline=baseline,
                ptq=ptq,
                qat=qat_model,
                onnx=onnx,
                engines=engines,
                evaluation=evaluation,
                gate=gate,
                seed=seed,
            )
        )

    return qat_pipeline


qat_pipeline = build_pipeline()
"""The pipeline as it runs on one machine, where the launcher provides what a pod would be given."""
