"""The workers of each step, by the config."""

from qatline.components.step_table import STEPS
from qatline.pipelines.cluster.worker_counts import launched_steps, workers_of
from qatline.pipelines.config.run_config import load_config


def test_training_steps_have_the_configs_workers() -> None:
    config = load_config(overrides=["training.workers=3"])
    counts = {step.name: workers_of(config, step.name) for step in STEPS}
    assert {name for name, count in counts.items() if count == 3} == {
        "train_baseline",
        "finetune_qat",
    }
    assert set(counts.values()) == {1, 3}


def test_steps_with_several_workers_are_launched() -> None:
    assert launched_steps(load_config()) == frozenset()
    several = load_config(overrides=["training.workers=2"])
    assert launched_steps(several) == {"train_baseline", "finetune_qat"}
    assert launched_steps(several) == {step.name for step in STEPS if step.distributed}
