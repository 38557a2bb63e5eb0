"""Step train_baseline: train the FP32 model, or evaluate a trained one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from qatline.components.artifacts import Baseline, Dataset
from qatline.components.artifacts.models import Epoch, ModelInfo
from qatline.components.runtime.steps import CHECKED
from qatline.components.settings import (
    ModelSettings,
    QuantizationSettings,
    RegistrySettings,
    RetrainSettings,
    Settings,
    TrainingSettings,
)
from qatline.components.storage.storage import local_path
from qatline.components.support.events import Progress

_UNNAMED = RegistrySettings()
_SCRATCH = RetrainSettings()
_DEFAULT_TABLE = QuantizationSettings()


def train_baseline_step(
    dataset: Path,
    out: Path,
    *,
    model: ModelSettings,
    training: TrainingSettings,
    seed: int,
    progress: Progress,
    registry: RegistrySettings = _UNNAMED,
    retrain: RetrainSettings = _SCRATCH,
    quantization: Annotated[QuantizationSettings, CHECKED] = _DEFAULT_TABLE,
    checkpoints: Path | None = None,
) -> dict[str, float]:
    """Train the model; write it with its history and test predictions.

    Args:
        dataset: directory of the prepared data.
        out: existing empty directory.
        model: the model; trained ones are only evaluated.
        training: epochs, learning rate and further settings.
        seed: seed of the initial weights, shuffling and augmentation.
        progress: receives every batch.
        registry: registered model with a champion to start from.
        retrain: whether training starts from the champion.
        quantization: its spec and cases are planned for the model before training, so that a
            misspelt layer name and a broken case fail early.
        checkpoints: folder for the training's state; None for none.

    Returns:
        Primary metric on the validation and test parts, number of parameters.

    Raises:
        ConfigError, UnsupportedModelError: the model cannot be loaded or is incompatible with the
            data.
        SpecError: the quantization spec does not fit the model.
        StorageError: a model or weights in S3 cannot be fetched.
    """
    from qat_lib.ptq import PtqRecipe
    from qatline.components.tasks import open_task
    from qatline.components.training.augmentation import augment_digest, chosen_augment
    from qatline.components.training.champion_start import champion_network
    from qatline.components.training.checkpoints import open_checkpoint
    from qatline.components.training.framework import choose_framework
    from qatline.components.training.prepared_data import measure_model
    from qatline.components.training.quantization_choice import open_cases, read_spec

    framework = choose_framework(model.framework)
    # Before the model is built: its initial weights depend on the seed.
    framework.make_deterministic(seed)
    info, baseline = Dataset(dataset).info(), Baseline(out)
    task = open_task(info)
    network, trained = framework.open_model(_with_local_files(model), info.shapes, task)
    cases = open_cases(quantization, task)
    if quantization.spec is not None or any(":" in name for name in quantization.cases):
        recipe = PtqRecipe(mode=quantization.mode, cases=cases, backend="tensorrt")
        recipe.plan(framework.bare(network), read_spec(quantization))
    if retrain.start == "champion" and not trained:
        begun = champion_network(registry, framework, info, warn=progress.warn)
        network = network if begun is None else begun
    history: list[Epoch] = []
    if not trained:
        training = training.model_copy(update={"augment": chosen_augment(training, task)})
        history = framework.fit(
            network,
            dataset,
            training,
            seed=seed,
            progress=progress,
            label_smoothing=training.label_smoothing,
            checkpoint=open_checkpoint(
                checkpoints, "baseline", training.checkpoint_epochs, progress.warn
            ),
        )
    metrics = {
        **measure_model(framework, network, dataset, keep=baseline),
        "parameters": float(framework.parameters(network)),
    }
    framework.save(network, baseline)
    description = ModelInfo(
        name=framework.name(network),
        source=model.name,
        framework=model.framework,
        parameters=framework.parameters(network),
        input_shape=info.shapes,
        probabilities=framework.last_activation(network) in task.activations,
        trained_here=not trained,
        augment=None if trained else training.augment,
        augment_code="" if trained else augment_digest(training),
    )
    baseline.write_metrics(metrics)
    baseline.write_history(history)
    baseline.write_info(description)
    return metrics


def _with_local_files(model: ModelSettings) -> ModelSettings:
    """Fetch a model and weights in S3; return the settings with local paths."""
    fetched: dict[str, str] = {}
    for key in ("name", "weights"):
        location = getattr(model, key) or ""
        if location.startswith("s3://"):
            fetched[key] = str(local_path(location, key=f"model.{key}"))
    return model.model_copy(update=fetched)


def train_baseline_settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that affect the result.

    The champion matters only if training starts from it.
    """
    retrain = RetrainSettings(start=sections["retrain"].start)
    champion = sections["registry"].name if retrain.start == "champion" else None
    return {**sections, "retrain": retrain, "registry": RegistrySettings(name=champion)}


def train_baseline_state(sections: Mapping[str, Settings]) -> dict[str, str]:
    """Return the champion's digest if training starts from it."""
    from qatline.components.registry.access import champion_digest

    registry, retrain = sections["registry"], sections["retrain"]
    if isinstance(retrain, RetrainSettings) and retrain.start == "champion":
        return champion_digest(registry)
    return {}
