"""The main pipeline: from data to a checked INT8 engine, eight steps.

Each parameter is a section of ``RunConfig`` as a dict, so a step reads what it needs and nothing
else; what a step does not read is not part of its cache key.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from kfp import dsl

from qat_lib.errors import StepError
from qatline.components.step_table import STEPS, Step
from qatline.pipelines.config.run_config import SECTIONS
from qatline.pipelines.kfp_components import component_of, section_of


def build_pipeline(
    prepare: Callable[[dsl.PipelineTask], object] | None = None,
    *,
    timeout: int | None = None,
    at_exit: Callable[[], dsl.PipelineTask] | None = None,
    check: Callable[[Mapping[str, Any]], dsl.PipelineTask] | None = None,
    launched: Collection[str] = (),
    root: str | None = None,
    stored: Mapping[str, Path] | None = None,
) -> Any:
    """Return the pipeline.

    Args:
        prepare: Configures each task's pod.
        timeout: Longest time of a run in seconds. Default: no limit.
        at_exit: Makes the task that runs when all others have ended, however they ended.
        check: Makes the task that says whether the steps run at all, from the parameters.
        launched: Steps that run as a TrainJob.
        root: Where the artifacts are. Default: where the server says.
        stored: Outputs of finished steps by the name of their artifact; the steps do not run.
    """

    def qat_pipeline(*values: Any) -> None:
        """Chain the steps; a section that is left empty has its defaults."""
        parameters = dict(zip(("seed", *SECTIONS), values, strict=True))
        with _ending(at_exit), _condition(check, parameters):
            _chain(parameters, prepare, launched, stored or {})

    # What kfp reads: the parameters' names, types and defaults.
    qat_pipeline.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [_parameter("seed", int, 0), *(_parameter(name, dict[str, Any], {}) for name in SECTIONS)]
    )
    return dsl.pipeline(
        name="qatline",
        description="From a Keras model to a checked INT8 engine.",
        pipeline_root=root,
        pipeline_config=dsl.PipelineConfig(active_deadline_seconds=timeout),
    )(qat_pipeline)


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, positional, default=default, annotation=kind)


def _ending(at_exit: Callable[[], dsl.PipelineTask] | None) -> AbstractContextManager[Any]:
    if at_exit is None:
        return nullcontext()
    group: AbstractContextManager[Any] = dsl.ExitHandler(at_exit(), name="pipeline")
    return group


def _condition(
    check: Callable[[Mapping[str, Any]], dsl.PipelineTask] | None, parameters: Mapping[str, Any]
) -> AbstractContextManager[Any]:
    if check is None:
        return nullcontext()
    # kfp makes a condition of the comparison.
    group: AbstractContextManager[Any] = dsl.If(
        check(parameters).output == True,  # noqa: E712
        name="anything new",
    )
    return group


def _chain(
    parameters: Mapping[str, Any],
    prepare: Callable[[dsl.PipelineTask], object] | None,
    launched: Collection[str],
    stored: Mapping[str, Path],
) -> None:
    artifacts: dict[str, Any] = {}
    for step in STEPS:
        if step.artifact in stored:
            artifacts[step.artifact] = dsl.importer(
                artifact_uri=str(stored[step.artifact]), artifact_class=getattr(dsl, step.kind)
            ).output
            continue
        component = component_of(step, launched=step.name in launched)
        sources: dict[str, Any] = {}
        for name in component.component_spec.inputs:
            sources[name] = _source(step, name, artifacts, parameters)
        task = component(**sources)
        if prepare is not None:
            prepare(task)
        artifacts[step.artifact] = task.outputs[step.artifact]


def _source(
    step: Step, name: str, artifacts: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Any:
    """Return a component's input.

    The artifact of an earlier step, or the section ``name`` or ``name_settings``.
    """
    if name in artifacts:
        return artifacts[name]
    section = section_of(name)
    if section not in parameters:
        raise StepError(
            f"Step {step.name!r} has an input {name!r} that nothing gives it. Expected the "
            f"artifact of a step before it ({', '.join(artifacts) or 'it is the first'}) or a "
            f"section of the config ({', '.join(parameters)})."
        )
    return parameters[section]


qat_pipeline = build_pipeline()
"""The pipeline as it runs on one machine, where the launcher provides what a pod would be given."""
