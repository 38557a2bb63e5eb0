"""The table of the steps, held against their modules."""

import json

import pytest

from qatline.components.runtime.steps import load_step
from qatline.components.settings import Settings
from qatline.components.step_table import STEPS, Step
from qatline.pipelines.config.run_config import SECTIONS, RunConfig, load_config

STEP_IDS = [step.name for step in STEPS]


def test_steps_have_names_and_artifacts_of_their_own() -> None:
    assert (
        len({step.name for step in STEPS}) == len({step.artifact for step in STEPS}) == len(STEPS)
    )


@pytest.mark.parametrize("step", STEPS, ids=STEP_IDS)
def test_step_reads_artifacts_of_earlier_steps(step: Step) -> None:
    earlier = {before.artifact for before in STEPS[: STEPS.index(step)]}
    assert set(load_step(step.name).inputs) <= earlier


@pytest.mark.parametrize("step", STEPS, ids=STEP_IDS)
def test_step_reads_sections_of_the_config(step: Step) -> None:
    known: set[type[Settings]] = {type(getattr(RunConfig(), name)) for name in SECTIONS}
    assert set(load_step(step.name).sections.values()) <= known


@pytest.mark.parametrize("step", STEPS, ids=STEP_IDS)
def test_step_and_launcher_read_equal_sections(step: Step) -> None:
    config = load_config(
        overrides=[
            "model.options={width: 8.0}",
            "quantization.spec=[{name: conv_1, num_bits: 4}]",
            *("training.workers=2", "data.image_size=[32, 32]", "registry.name=line"),
            *("retrain.start=champion", "retrain.qat=auto", "engine.benchmark_seconds=3"),
        ]
    )
    # Kubeflow hands numbers on as doubles.
    sent = json.loads(json.dumps(config.pipeline_parameters()), parse_int=float)
    definition = load_step(step.name)
    texts = []
    for sections in (sent, config.sections()):
        parsed = definition.parse({name: sections[name] for name in definition.sections})
        texts.append({name: section.model_dump_json() for name, section in parsed.items()})
    assert texts[0] == texts[1]


@pytest.mark.parametrize("step", STEPS, ids=STEP_IDS)
def test_step_tracks_part_of_its_output(step: Step) -> None:
    assert step.tracked.artifacts
