"""What each part of QAT's recipe is worth, against FP32 trained for as long.

    uv run python benchmarks/qat_recipes.py --network resnet20 --seeds 0 1 2 --json recipes.json

Of each seed the FP32 network is fine-tuned on CIFAR-10 images, and trained on for as many epochs
again: that is the control. From the same weights, with the same order, augmentation and schedule,
the quantized and calibrated network is trained once for each recipe. The figures are those of the
Keras networks on the test images, as they are and, "statistics again", with the statistics of
BatchNormalization re-estimated; none chooses an epoch. What is trained is kept in ``--work``, so that
the command can be stopped and started again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import keras
import record
from applications_images import SHARED
from qat_recipes_data import CifarData, accuracy

import qat_lib
from qat_lib.keras.training import reestimate_batch_norm
from qat_lib.models import build_reference_model
from qat_lib.models.weights import load_weights
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.support.events import NullProgress
from qatline.components.training import fitting


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A way to quantize and train.

    Attributes:
        ranges: range policy of activations.
        weights: range policy of weights.
        bits: width of the weights' integers.
        teacher: ``control``, ``baseline`` or nobody.
        equalize: start from the equalized baseline.
        qat: what differs from the schedule.
    """

    ranges: str = "frozen"
    weights: str = "current"
    bits: int = 8
    teacher: str = ""
    equalize: bool = False
    qat: Mapping[str, Any] = field(default_factory=dict)


RECIPES = {
    "labels": Recipe(),
    "baseline teaches": Recipe(teacher="baseline", qat={"distillation": 0.5}),
    "control teaches": Recipe(teacher="control", qat={"distillation": 0.5}),
    "control teaches alone": Recipe(teacher="control", qat={"distillation": 1.0}),
    "control teaches, averaged": Recipe(teacher="control", qat={"distillation": 0.5, "ema": 0.99}),
    "labels, learned ranges": Recipe(ranges="learned"),
    "labels, equalized": Recipe(equalize=True),
    "labels, equalized, learned ranges": Recipe(equalize=True, ranges="learned"),
    "W4A8, labels, learned ranges": Recipe(ranges="learned", weights="learned", bits=4),
    "W4A8, labels, learned ranges, oscillation frozen": Recipe(
        ranges="learned", weights="learned", bits=4, qat={"freeze_oscillating": 0.02}
    ),
    "W4A8, control teaches, learned ranges, 3e-4": Recipe(
        ranges="learned",
        weights="learned",
        bits=4,
        teacher="control",
        qat={"distillation": 0.5, "learning_rate": 3e-4},
    ),
}


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network with the schedules of its baseline and of QAT."""

    name: str
    about: str
    weights: str
    side: int
    baseline: TrainingSettings
    qat: Mapping[str, Any]
    training_samples: int = 10_000
    validation_samples: int = 1000
    test_samples: int = 2000


SIGNS = ("signed", "unsigned")
ADAPT = {"batch_size": 64, "learning_rate": 1e-4, "epochs": 2, "augment": "flip_crop"}
NETWORKS = {
    "resnet20": Network(
        name="resnet20_cifar10",
        about="ResNet-20, about 8,500 training and 2,000 test images of 32 pixels.",
        weights="resnet20_cifar10.npz",
        side=32,
        baseline=TrainingSettings.model_validate(ADAPT),
        qat=ADAPT,
    ),
    "mobilenetv2": Network(
        name="mobilenetv2_imagenet",
        about=(
            "MobileNetV2 with ImageNet weights and a new head, images enlarged to 96 pixels, 3,000 "
            "to train and 2,000 to test."
        ),
        weights="mobilenetv2_imagenet.npz",
        side=96,
        baseline=TrainingSettings.model_validate(
            {**ADAPT, "batch_size": 32, "learning_rate": 1e-3}
        ),
        qat={**ADAPT, "batch_size": 32},
        training_samples=3000,
        validation_samples=500,
    ),
}


class Trial:
    """The models of one network and seed.

    Args:
        network: which one.
        seed: of the split, the order and the augmentation.
        shared: folder of weights and images.
        work: folder to keep models in.
    """

    def __init__(self, network: Network, seed: int, shared: Path, work: Path) -> None:
        self._network, self._seed, self._shared, self._work = network, seed, shared, work
        self._data = CifarData(
            shared / "cifar10_jpeg_subset.npz",
            seed,
            side=network.side,
            training=network.training_samples,
            validation=network.validation_samples,
            test=network.test_samples,
        )

    def accuracy(self, model: Any) -> float:
        """Return a model's accuracy on the test images, in [0, 1]."""
        return accuracy(model, self._data.test())

    def reestimate(self, model: Any) -> None:
        """Measure a model's statistics again, in place."""
        batches = self._data.train(self._network.qat["batch_size"], shuffle_seed=0, augment="none")
        reestimate_batch_norm(model, batches)

    def baseline(self) -> Any:
        """Return the FP32 network that was fine-tuned on these images."""

        def make() -> Any:
            return self._train(self._initial(), self._network.baseline)

        return self._kept("baseline", make)

    def control(self) -> Any:
        """Return the FP32 network that was trained for as long as QAT."""
        return self._kept("control", lambda: self._train(self.baseline(), self._qat({})))

    def calibrated(self, recipe: Recipe, *, unsigned: bool) -> Any:
        """Return the quantized and calibrated baseline."""
        base, images = self.baseline(), self._data.calibration()
        if recipe.equalize:
            base = qat_lib.equalize(base, images)
        plan = qat_lib.plan_quantization(
            base, custom_qdq_cases=[qat_lib.TensorRTQDQCase()], unsigned=unsigned
        ).with_range_policy(recipe.ranges)
        entries = []
        for entry in plan.quantizers:
            if entry.kind == "weight":
                entry = replace(entry, num_bits=recipe.bits, range_policy=recipe.weights)
            entries.append(entry)
        model = qat_lib.apply_plan(base, replace(plan, quantizers=tuple(entries)))
        qat_lib.calibrate(model, images, batch_size=64, freeze=recipe.ranges == "frozen")
        qat_lib.correct_bias(model, images)
        return model

    def trained(self, recipe: Recipe, *, unsigned: bool) -> Any:
        """Return the network after QAT."""
        model = self.calibrated(recipe, unsigned=unsigned)
        teachers = {"control": self.control, "baseline": self.baseline}
        teacher = teachers[recipe.teacher]() if recipe.teacher else None
        return self._train(model, self._qat(recipe.qat), teacher)

    def _qat(self, changes: Mapping[str, Any]) -> QATSettings:
        return QATSettings.model_validate({**self._network.qat, "distillation": 0.0, **changes})

    def _initial(self) -> Any:
        """Return the published network, with a new head where the classes are others."""
        network, shape = self._network, (self._network.side, self._network.side, 3)
        classes = 10 if network.side == 32 else 1000
        published = build_reference_model(network.name, shape, classes)
        load_weights(published, self._shared / network.weights)
        if classes == 10:
            return published
        model = build_reference_model(network.name, shape, 10)
        for layer in model.layers[:-1]:
            layer.set_weights(published.get_layer(layer.name).get_weights())
        return model

    def _train(
        self, model: Any, schedule: TrainingSettings | QATSettings, teacher: Any = None
    ) -> Any:
        options = {"teacher": teacher, "distillation": getattr(schedule, "distillation", 0.0)}
        keras.utils.set_random_seed(self._seed)
        fitting.fit(
            model, self._data, schedule, seed=self._seed, progress=NullProgress(), **options
        )
        return model

    def _kept(self, name: str, make: Any) -> Any:
        path = self._work / f"{self._network.name}_{self._seed}_{name}.keras"
        if not path.exists():
            keras.utils.set_random_seed(self._seed)
            make().save(path)
        return qat_lib.load_model(path)


class Figures:
    """The accuracies of a seed by row, kept in a file after each one.

    Args:
        trial: measures.
        file: the file; rows that it has are not measured again.
    """

    def __init__(self, trial: Trial, file: Path) -> None:
        self._trial, self._file = trial, file
        self.rows: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}

    def measure(self, name: str, sign: str, make: Callable[[], Any]) -> None:
        """Measure a model unless it is known, as it is and with statistics measured again."""
        ending = f", {sign}" if sign else ""
        if f"{name}{ending}" in self.rows:
            return
        model = make()
        self._note(f"{name}{ending}", model)
        self._trial.reestimate(model)
        self._note(f"{name}, statistics again{ending}", model)

    def _note(self, row: str, model: Any) -> None:
        self.rows[row] = self._trial.accuracy(model)
        print(f"{row}: {self.rows[row]:.2%}", flush=True)
        self._file.write_text(json.dumps(self.rows, indent=1))


def measure(trial: Trial, recipes: list[str], signs: list[str], figures: Figures) -> None:
    """Measure the rows of a seed."""
    figures.measure("FP32", "", trial.baseline)
    figures.measure("FP32, as long", "", trial.control)
    for sign in signs:
        for name in ("PTQ", *recipes):
            figures.measure(name, sign, partial(_quantized, trial, name, sign))


def _quantized(trial: Trial, name: str, sign: str) -> Any:
    unsigned = sign == "unsigned"
    if name == "PTQ":
        return trial.calibrated(Recipe(), unsigned=unsigned)
    return trial.trained(RECIPES[name], unsigned=unsigned)


def main() -> int:
    """Train, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shared", type=Path, default=SHARED)
    parser.add_argument("--network", choices=list(NETWORKS), default="resnet20")
    parser.add_argument("--recipes", nargs="+", choices=list(RECIPES), default=list(RECIPES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--signs", nargs="+", choices=list(SIGNS), default=list(SIGNS))
    parser.add_argument("--work", type=Path, default=Path("runs") / "qat_recipes")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    network, rows = NETWORKS[arguments.network], {}
    for seed in arguments.seeds:
        trial = Trial(network, seed, arguments.shared, arguments.work)
        figures = Figures(trial, arguments.work / f"{network.name}_{seed}.json")
        measure(trial, arguments.recipes, arguments.signs, figures)
        rows[seed] = figures.rows
    means = {}
    for name in rows[arguments.seeds[0]]:
        means[name] = mean(row[name] for row in rows.values() if name in row)
        print(f"{name:<44}{means[name]:>8.2%}")
    if arguments.json:
        about = {"network": network.name, "about": network.about}
        record.write(arguments.json, {**about, "seeds": rows, "mean": means})
    return 0


if __name__ == "__main__":
    sys.exit(main())
