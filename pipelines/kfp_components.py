"""Kubeflow components generated from the step table and signatures.

kfp puts a component's source text into the compiled pipeline. So each component is a function that
is written here as text: it hands paths and settings on to ``qatline.components.runtime.step``. The steps
themselves know nothing of kfp.
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from typing import Any

from kfp import dsl

from qatline.components.runtime.steps import StepDefinition, load_step
from qatline.components.step_table import STEPS, Step
from qatline.components.support.images import ENGINE_IMAGE, IMAGE

_IMAGES = {"train": IMAGE, "engine": ENGINE_IMAGE}
_SUFFIX = "_settings"
_BODIES = {
    False: "qatline.components.runtime.step import run_component",
    True: "qatline.components.runtime.train_job_component import run_as_train_job",
}


def section_of(parameter: str) -> str:
    """Return the section of the config that a component's parameter stands for."""
    return parameter.removesuffix(_SUFFIX)


def component_of(step: Step, *, launched: bool = False) -> Any:
    """Return the component of a step.

    Args:
        step: The entry of the table.
        launched: Whether it runs the step as a TrainJob.

    Raises:
        StepError: the step's function does not follow the conventions.
    """
    return make_component(step, load_step(step.name), launched=launched)


def make_component(step: Step, definition: StepDefinition, *, launched: bool = False) -> Any:
    """Return the component of a step, generated from its function."""
    source = component_source(step, definition, launched=launched)
    file = f"<{'launcher' if launched else 'component'} of {step.name}>"
    return component_from(source, f"{step.name}_component", file=file, image=_IMAGES[step.image])


def component_from(source: str, name: str, *, file: str, image: str) -> Any:
    """Return the component whose function is ``name`` in a text; ``file`` names the text."""
    # Where kfp looks the text up; None: it is never read again from a file.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"dsl": dsl, "Any": Any, "__name__": __name__}
    exec(compile(source, file, "exec", dont_inherit=True), scope)
    return dsl.component(base_image=image, install_kfp_package=False)(scope[name])


def component_source(step: Step, definition: StepDefinition, *, launched: bool = False) -> str:
    """Return the text of a step's component.

    Its parameters are the artifacts that the step reads, its own artifact, ``report`` if it has a
    page, ``confusion`` if it has a confusion matrix, ``metrics``, its sections, and the seed. A
    section of an artifact's name has the suffix ``_settings``. A launched one has the same, and
    hands on where Kubeflow's object store has the artifacts.
    """
    attribute = "uri" if launched else "path"
    required: list[str] = []
    optional: list[str] = []
    for name in definition.inputs:
        (optional if name in definition.optional_inputs else required).append(name)
    sections = {_parameter(name, step, definition): name for name in definition.sections}
    lines = [
        f"def {step.name}_component(",
        *map(_input, required),
        f"    {step.artifact}: dsl.Output[dsl.{step.kind}],",
    ]
    if step.page:
        lines.append("    report: dsl.Output[dsl.HTML],")
    if step.confusion:
        lines.append("    confusion: dsl.Output[dsl.ClassificationMetrics],")
    lines.append("    metrics: dsl.Output[dsl.Metrics],")
    lines += map("    {}: dict = {{}},".format, sections)
    lines.append("    seed: int = 0,")
    lines += map(_optional_input, optional)
    lines += [
        ") -> None:",
        f"    from {_BODIES[launched]}",
        "",
        f"    inputs = {{{', '.join(_entry(name, attribute) for name in required)}}}",
    ]
    for name in optional:
        lines += [f"    if {name}:", f"        inputs |= {{{_entry(name, attribute)}}}"]
    lines += _call(step, sections, launched=launched)
    return "\n".join(lines) + "\n"


def _input(name: str) -> str:
    return f"    {name}: dsl.Input[dsl.{_kind(name)}],"


def _optional_input(name: str) -> str:
    return f"    {name}: dsl.Input[dsl.{_kind(name)}] = None,"


def _call(step: Step, sections: Mapping[str, str], *, launched: bool) -> list[str]:
    """Return the lines that run the step; ``sections`` are by their parameters."""
    settings = [f'"{section}": {name}' for name, section in sections.items()]
    lines = [
        f"    {_BODIES[launched].rpartition(' ')[2]}(",
        f'        "{step.name}",',
        f"        settings={{{', '.join(settings)}}},",
        "        seed=seed,",
        "        inputs=inputs,",
        f"        output={step.artifact}.path,",
        "        metrics_artifact=metrics,",
    ]
    if launched:
        lines.append(f"        output_uri={step.artifact}.uri,")
    if step.confusion:
        lines.append("        confusion_artifact=confusion,")
    if step.page:
        lines.append("        page=report.path,")
    return [*lines, "    )"]


def _parameter(section: str, step: Step, definition: StepDefinition) -> str:
    taken = (*definition.inputs, step.artifact)
    return section + _SUFFIX if section in taken else section


def _entry(name: str, attribute: str) -> str:
    return f'"{name}": {name}.{attribute}'


def _kind(artifact: str) -> str:
    """Return an artifact's type; ``Artifact`` if no step produces it.

    The wiring of the steps then refuses it.
    """
    for step in STEPS:
        if step.artifact == artifact:
            return step.kind
    return "Artifact"
