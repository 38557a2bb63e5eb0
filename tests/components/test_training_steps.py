"""The three steps that need TensorFlow, called as functions on scikit-learn's digits."""

import json
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qat_lib.errors import ConfigError, SpecError, UnsupportedModelError
from qatline.components.settings import (
    EngineSettings,
    ExportSettings,
    ModelSettings,
    QATSettings,
    QuantizationSettings,
    TrainingSettings,
)
from qatline.components.store.manifest import describe
from qatline.components.support.events import NullProgress
from qatline.components.tasks import task_for

# All tests read the results of one training of 45 CPU seconds.
pytestmark = pytest.mark.matrix
SHORT = TrainingSettings(epochs=3, learning_rate=5e-3)

TEN = task_for("classification", classes=list("0123456789"))


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory, digits_dataset: Path) -> dict[str, Path]:
    """Run the three steps once, with a short training."""
    from qatline.components.steps.finetune_qat import finetune_qat_step
    from qatline.components.steps.quantize_model import quantize_model_step
    from qatline.components.steps.train_baseline import train_baseline_step

    made = {name: tmp_path_factory.mktemp(name) for name in ("baseline", "ptq", "qat")}
    train_baseline_step(
        digits_dataset,
        made["baseline"],
        model=ModelSettings(options={"width": 16}),
        training=SHORT,
        seed=1,
        progress=NullProgress(),
    )
    quantize_model_step(
        digits_dataset,
        made["baseline"],
        made["ptq"],
        quantization=QuantizationSettings(diagnose_layers=3),
        export=ExportSettings(),
        engine=EngineSettings(backend="openvino"),
        seed=1,
        progress=NullProgress(),
    )
    finetune_qat_step(
        digits_dataset,
        made["baseline"],
        made["ptq"],
        made["qat"],
        qat=QATSettings(epochs=1),
        seed=1,
        progress=NullProgress(),
    )
    return {"dataset": digits_dataset, **made}


@pytest.fixture(scope="module")
def again(steps: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the baseline a second time."""
    from qatline.components.steps.train_baseline import train_baseline_step

    folder = tmp_path_factory.mktemp("again")
    train_baseline_step(
        steps["dataset"],
        folder,
        model=ModelSettings(options={"width": 16}),
        training=SHORT,
        seed=1,
        progress=NullProgress(),
    )
    return folder


def test_train_baseline_repeat_has_equal_digest(steps: dict[str, Path], again: Path) -> None:
    first, second = describe(steps["baseline"]), describe(again)
    assert first.files["model.keras"].sha256 != second.files["model.keras"].sha256
    assert first.digest == second.digest


@pytest.mark.parametrize(
    ("trained_with", "asked", "used"),
    [("flip_crop", None, "flip_crop"), (None, None, None), (None, "shift", "shift")],
)
def test_finetune_qat_augments_as_the_baseline(
    steps: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trained_with: str | None,
    asked: Any,
    used: str | None,
) -> None:
    from qatline.components.artifacts import Baseline
    from qatline.components.steps.finetune_qat import finetune_qat_step
    from qatline.components.training import finetuning

    given: list[QATSettings] = []

    def stop(_network: Any, _data: Any, schedule: QATSettings, **_: Any) -> None:
        given.append(schedule)
        raise InterruptedError

    monkeypatch.setattr(finetuning, "finetune", stop)
    info = Baseline(steps["baseline"]).info()
    assert info.augment == "shift"
    baseline = tmp_path / "baseline"
    shutil.copytree(steps["baseline"], baseline)
    Baseline(baseline).write_info(info.model_copy(update={"augment": trained_with}))
    (out := tmp_path / "out").mkdir()
    with pytest.raises(InterruptedError):
        finetune_qat_step(
            steps["dataset"],
            baseline,
            steps["ptq"],
            out,
            qat=QATSettings(epochs=1, augment=asked),
            seed=1,
            progress=NullProgress(),
        )
    assert given[0].augment == used


def test_train_baseline_records_no_augmentation_of_a_trained_model(
    steps: dict[str, Path], tmp_path: Path
) -> None:
    from qatline.components.steps.train_baseline import train_baseline_step

    train_baseline_step(
        steps["dataset"],
        tmp_path,
        model=ModelSettings(name=str(steps["baseline"] / "model.keras")),
        training=SHORT,
        seed=1,
        progress=NullProgress(),
    )
    assert read(tmp_path / "model.json")["augment"] is None


def test_train_baseline_refuses_misspelt_layer_before_training(
    steps: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qatline.components.steps.train_baseline import train_baseline_step
    from qatline.components.training.keras_framework import KerasFramework

    monkeypatch.setattr(KerasFramework, "fit", lambda *_, **__: pytest.fail("it trained"))
    with pytest.raises(SpecError, match=r"'logit' .did you mean 'logits'"):
        train_baseline_step(
            steps["dataset"],
            tmp_path,
            model=ModelSettings(options={"width": 16}),
            training=SHORT,
            quantization=QuantizationSettings(spec=[{"name": "logit"}]),
            seed=1,
            progress=NullProgress(),
        )
    assert not list(tmp_path.iterdir())


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def test_models_are_kept_without_their_training(steps: dict[str, Path]) -> None:
    import keras

    for step in ("baseline", "qat"):
        file = steps[step] / "model.keras"
        loaded = keras.models.load_model(file)  # no loss or optimizer of ours is needed
        assert not loaded.compiled
        assert file.stat().st_size < 1.5 * 4 * loaded.count_params() + 200_000


def test_baseline_learns_and_writes_its_outputs(steps: dict[str, Path]) -> None:
    from qatline.components.data.reader import load_split

    metrics = read(steps["baseline"] / "metrics.json")
    outputs = np.load(steps["baseline"] / "predictions.npy")
    _, labels = load_split(steps["dataset"], "test")
    assert metrics["test_accuracy"] > 0.5
    assert metrics["test_accuracy"] == pytest.approx((outputs.argmax(1) == labels).mean())
    history = read(steps["baseline"] / "history.json")
    assert [row["epoch"] for row in history] == [1, 2, 3]
    assert history[-1]["loss"] < history[0]["loss"]
    assert read(steps["baseline"] / "model.json")["probabilities"] is False


def test_training_is_repeatable_with_equal_seed(steps: dict[str, Path], again: Path) -> None:
    first, second = (np.load(path / "predictions.npy") for path in (steps["baseline"], again))
    np.testing.assert_array_equal(first, second)


def test_calibration_sets_and_records_every_range(steps: dict[str, Path]) -> None:
    ranges = read(steps["ptq"] / "ranges.json")
    plan = read(steps["ptq"] / "plan.json")
    assert set(ranges) == {entry["name"] for entry in plan["quantizers"]}
    activations = [item for item in ranges.values() if item["kind"] == "activation"]
    assert activations
    assert all(0 < item["amax"] <= item["observed_max"] for item in activations)
    assert all(sum(item["histogram"]["counts"]) > 0 for item in activations)
    assert all(
        isinstance(item["amax"], list) for item in ranges.values() if item["kind"] == "weight"
    )


def test_costs_of_the_noisiest_layers_are_kept(steps: dict[str, Path]) -> None:
    costs = read(steps["ptq"] / "layer_costs.json")
    assert costs["samples"] == 16
    assert len(costs["layers"]) == 3
    effects = [max(layer["weights"] or 0, layer["inputs"] or 0) for layer in costs["layers"]]
    assert effects == sorted(effects, reverse=True)


@pytest.mark.slow  # `adaround` has tests of its own
def test_quantize_model_rounds_weights_by_outputs(steps: dict[str, Path], tmp_path: Path) -> None:
    from qatline.components.steps.quantize_model import quantize_model_step

    metrics = quantize_model_step(
        steps["dataset"],
        steps["baseline"],
        tmp_path,
        quantization=QuantizationSettings(
            rounding="adaround",
            spec=[{"name": ".*", "is_regex": True, "weight_num_bits": 3}],
        ),
        export=ExportSettings(),
        engine=EngineSettings(backend="openvino"),
        seed=1,
        progress=NullProgress(),
    )
    # The spec quantizes what BatchNormalization reads as well, so that only the logits' bias is left.
    assert (metrics["rounded_layers"], metrics["corrected_biases"]) == (14, 1)
    assert "rounded_layers" not in read(steps["ptq"] / "metrics.json")


def test_frozen_ranges_stay_as_calibrated_through_fine_tuning(steps: dict[str, Path]) -> None:
    before, after = read(steps["ptq"] / "ranges.json"), read(steps["qat"] / "ranges.json")
    for name, item in before.items():
        if item["kind"] == "activation":
            assert after[name]["amax"] == item["amax"]


def test_fine_tuning_says_which_epoch_it_keeps(steps: dict[str, Path]) -> None:
    import qat_lib

    history, metrics = read(steps["qat"] / "history.json"), read(steps["qat"] / "metrics.json")
    assert [row["epoch"] for row in history] == [0, 1]
    (kept,) = [row for row in history if row["kept"]]
    assert metrics["kept_epoch"] == kept["epoch"]
    assert metrics["validation_accuracy"] == pytest.approx(kept["val_accuracy"])
    weights = [
        qat_lib.load_model(steps[step] / "model.keras").get_weights() for step in ("ptq", "qat")
    ]
    same = all(np.array_equal(before, after) for before, after in zip(*weights, strict=True))
    assert same == (kept["epoch"] == 0)


def test_control_is_trained_and_teaches(steps: dict[str, Path], tmp_path: Path) -> None:
    from qatline.components.steps.finetune_qat import finetune_qat_step

    metrics = finetune_qat_step(
        steps["dataset"],
        steps["baseline"],
        steps["ptq"],
        tmp_path,
        qat=QATSettings(epochs=1, teacher="control"),
        seed=1,
        progress=NullProgress(),
    )
    figures = read(tmp_path / "control" / "metrics.json")
    assert metrics["control_test_accuracy"] == figures["test_accuracy"]
    change = metrics["test_accuracy"] - figures["test_accuracy"]
    assert metrics["test_accuracy_change_from_control"] == pytest.approx(change)
    assert [row["epoch"] for row in read(tmp_path / "control" / "history.json")] == [0, 1]
    assert (tmp_path / "control" / "model.keras").is_file()
    assert np.load(tmp_path / "control" / "predictions.npy").shape[1] == 10


def test_without_a_control_there_is_no_trace_of_it(steps: dict[str, Path]) -> None:
    assert not (steps["qat"] / "control").exists()
    assert "control_test_accuracy" not in read(steps["qat"] / "metrics.json")


def test_fine_tuning_says_which_weights_oscillate(steps: dict[str, Path]) -> None:
    for item in read(steps["qat"] / "ranges.json").values():
        assert ("oscillating" in item) == ("held" in item) == (item["kind"] == "weight")
        assert 0 <= item.get("oscillating", 0) <= 1


def test_fine_tuning_says_what_decided(steps: dict[str, Path]) -> None:
    first, last = read(steps["qat"] / "history.json")
    assert "gain" not in first
    assert last["gain"] == pytest.approx(first["val_loss"] - last["val_loss"])
    assert bool(last["kept"]) == (last["gain"] > last["gain_bound"] > 0)


def test_a_trained_model_file_is_only_evaluated(steps: dict[str, Path], tmp_path: Path) -> None:
    from qatline.components.steps.train_baseline import train_baseline_step

    settings = ModelSettings(name=str(steps["baseline"] / "model.keras"))
    train_baseline_step(
        steps["dataset"], tmp_path, model=settings, training=SHORT, seed=9, progress=NullProgress()
    )
    assert read(tmp_path / "history.json") == []
    np.testing.assert_array_equal(
        np.load(tmp_path / "predictions.npy"), np.load(steps["baseline"] / "predictions.npy")
    )


def save_model(kind: str, path: Path) -> str:
    import keras
    from keras import layers

    shapes = {"wrong_input": (9, 9, 1), "two_inputs": (8, 8, 1)}
    inputs = keras.Input(shapes.get(kind, (8, 8, 1)))
    x = layers.Flatten()(inputs)
    if kind == "lambda":
        x = layers.Lambda(lambda t: t * 2)(x)
    outputs = layers.Dense(7 if kind == "wrong_outputs" else 10)(x)
    model = keras.Model(inputs, outputs)
    if kind == "two_inputs":
        other = keras.Input((8, 8, 1))
        model = keras.Model(
            [inputs, other], layers.Add()([outputs, layers.Dense(10)(layers.Flatten()(other))])
        )
    model.save(path)
    return str(path)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("wrong_input", r"expects images of shape \(9, 9, 1\).*the data has \(8, 8, 1\)"),
        (
            "wrong_outputs",
            r"gives outputs of shape \(7,\).*10 classes.*task\.name",
        ),
        ("two_inputs", "has 2 inputs .*, but the data has one"),
        ("lambda", "Lambda layer, whose code safe mode does not run"),
    ],
)
def test_incompatible_model_is_refused_with_reason(
    kind: str, message: str, steps: dict[str, Path], tmp_path: Path
) -> None:
    from qatline.components.steps.train_baseline import train_baseline_step

    settings = ModelSettings(name=save_model(kind, tmp_path / "given.keras"))
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(UnsupportedModelError, match=message):
        train_baseline_step(
            steps["dataset"], out, model=settings, training=SHORT, seed=0, progress=NullProgress()
        )
    assert list(out.iterdir()) == []


def test_damaged_model_file_is_refused_with_reason(steps: dict[str, Path], tmp_path: Path) -> None:
    from qatline.components.training.model_source import open_model

    whole = (steps["baseline"] / "model.keras").read_bytes()
    broken = tmp_path / "broken.keras"
    broken.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UnsupportedModelError, match="can't be loaded"):
        open_model(ModelSettings(name=str(broken)), (8, 8, 1), TEN)
    with pytest.raises(UnsupportedModelError, match="no model file"):
        open_model(ModelSettings(name=str(tmp_path / "missing.keras")), (8, 8, 1), TEN)


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user module with builder, subclassed model and Q/DQ case."""
    code = """
        import keras
        from qat_lib import CustomQDQInsertionCase, QuantizationSpec

        def build(input_shape, classes, units=16):
            x = inputs = keras.Input(input_shape)
            x = keras.layers.Dense(units, activation="relu", name="hidden")(keras.layers.Flatten()(x))
            return keras.Model(inputs, keras.layers.Dense(classes, name="head", activation="softmax")(x))

        class Subclassed(keras.Model):
            def __init__(self, classes):
                super().__init__()
                self.flatten = keras.layers.Flatten()
                self.head = keras.layers.Dense(classes, activation="softmax")

            def call(self, x):
                return self.head(self.flatten(x))

        def subclassed(classes):
            return Subclassed(classes)

        class Branching(Subclassed):
            def call(self, x):
                return super().call(x) if float(x[0, 0, 0, 0]) > 0 else x

        def branching(classes):
            return Branching(classes)

        class NoHead(CustomQDQInsertionCase):
            def case(self, keras_model, qspec):
                return QuantizationSpec().add("head", quantize_input=False, quantize_weight=False)
    """
    (tmp_path / "users_own_module.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(tmp_path)
    yield "users_own_module"
    sys.modules.pop("users_own_module", None)


def test_a_users_own_function_builds_the_model(user_module: str) -> None:
    from qatline.components.training.model_source import last_activation, open_model

    model, trained = open_model(
        ModelSettings(name=f"{user_module}:build", options={"units": 5}), (8, 8, 1), TEN
    )
    assert model.get_layer("hidden").units == 5
    assert not trained
    assert last_activation(model) == "softmax"


def test_a_users_own_subclassed_model_has_a_graph(user_module: str) -> None:
    from qatline.components.training.model_source import last_activation, open_model

    model, _ = open_model(ModelSettings(name=f"{user_module}:subclassed"), (8, 8, 1), TEN)
    assert last_activation(model) == "softmax"
    assert model.output_shape == (None, 10)


def test_a_users_own_case_decides(user_module: str) -> None:
    import qat_lib
    from qatline.components.training.model_source import open_model
    from qatline.components.training.quantization_choice import open_cases

    model, _ = open_model(ModelSettings(name=f"{user_module}:build"), (8, 8, 1), TEN)
    cases = open_cases(QuantizationSettings(cases=[f"{user_module}:NoHead"]))
    plan = qat_lib.plan_quantization(model, custom_qdq_cases=cases)
    assert [entry.tensor for entry in plan.by_kind("weight")] == ["hidden/kernel"]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("resnet_digit", ConfigError, "Did you mean 'resnet_digits'"),
        ("keras.applications:ResNet49", ConfigError, "keras.applications has no 'ResNet49'"),
        ("no_such_module:build", ConfigError, "can't be imported"),
        ("users_own_module:missing", ConfigError, "can't be imported"),
        (
            "users_own_module:branching",
            UnsupportedModelError,
            "subclassed model that can't be called",
        ),
    ],
)
def test_a_model_name_that_leads_nowhere_is_refused(
    name: str, error: type[Exception], message: str, user_module: str
) -> None:
    from qatline.components.training.model_source import open_model

    with pytest.raises(error, match=message):
        open_model(ModelSettings(name=name), (8, 8, 1), TEN)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"cases": ["ResNetV1QDQCas"]}, ConfigError, "Did you mean ResNetV1QDQCase"),
        ({"cases": ["no_such_module:Case"]}, ConfigError, "can't be imported"),
        (
            {"spec": [{"name": "Convolution2D9", "is_keras_class": True}]},
            SpecError,
            "No wrapper supports",
        ),
        ({"spec": [{"nam": "head"}]}, ValueError, "unknown key 'nam'"),
        ({"spec": "missing.yaml"}, SpecError, "there is none"),
    ],
)
def test_a_wrong_quantization_choice_is_refused(
    settings: dict, error: type[Exception], message: str
) -> None:
    import qat_lib
    from qat_lib.models import resnet_digits
    from qatline.components.training.quantization_choice import open_cases, read_spec

    def plan() -> None:
        choice = QuantizationSettings(**settings)
        qat_lib.plan_quantization(
            resnet_digits(), choice.mode, read_spec(choice), open_cases(choice)
        )

    with pytest.raises(error, match=message):
        plan()


def test_pytorch_weights_need_every_name(tmp_path: Path) -> None:
    from qat_lib.models import resnet20_cifar10
    from qat_lib.models.weights import load_weights

    np.savez(tmp_path / "w.npz", **{"conv1.weight": np.zeros((16, 3, 3, 3), np.float32)})
    with pytest.raises(ConfigError, match=r"lack 'bn1\.weight'"):
        load_weights(resnet20_cifar10(), tmp_path / "w.npz")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(ConfigError, match="does not fit"):
        load_weights(resnet20_cifar10(), tmp_path / "broken.npz")
