"""A quick three-step pipeline for tests of the runner.

The middle step misbehaves as the config asks. Its steps are real KFP components in real processes;
only their work is small.
"""

from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def prepare_data_component(seed: int, model: dict, dataset: dsl.Output[dsl.Dataset]):
    import fake_steps

    fake_steps.run("prepare_data", seed, model, {}, dataset.path)


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def train_baseline_component(
    seed: int, model: dict, dataset: dsl.Input[dsl.Dataset], baseline: dsl.Output[dsl.Model]
):
    import fake_steps

    fake_steps.run("train_baseline", seed, model, {"dataset": dataset.path}, baseline.path)


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def evaluate_component(
    seed: int,
    model: dict,
    engine: dict,
    baseline: dsl.Input[dsl.Model],
    evaluation: dsl.Output[dsl.Artifact],
):
    import fake_steps

    inputs = {"baseline": baseline.path}
    fake_steps.run("evaluate", seed, model, inputs, evaluation.path, engine=engine)


@dsl.pipeline(name="fake")
def fake_pipeline(seed: int, model: dict, engine: dict):
    data = prepare_data_component(seed=seed, model=model)
    trained = train_baseline_component(seed=seed, model=model, dataset=data.outputs["dataset"])
    evaluate_component(seed=seed, model=model, engine=engine, baseline=trained.outputs["baseline"])
