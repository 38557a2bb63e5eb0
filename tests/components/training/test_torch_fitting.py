"""Training of PyTorch networks: its parts, and that a twin in Keras ends with the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qatline.components.artifacts.models import TorchRecipe
from qatline.components.data.labelled import Labelled
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.support.events import NullProgress
from qatline.components.tasks import task_for

torch = pytest.importorskip("torch")

from qatline.components.tasks.torch_losses import TorchCrossEntropy  # noqa: E402
from qatline.components.training import fitting, torch_fitting  # noqa: E402
from qatline.components.training.array_data import ArrayData  # noqa: E402
from qatline.components.training.torch_network import TorchNetwork  # noqa: E402

LOGITS = np.float32([[2, 0, -1], [0, 1, 3], [1, 0, 0]])
X = np.random.default_rng(0).normal(size=(37, 1, 1, 3)).astype(np.float32)
Y = (X.sum(axis=(1, 2, 3)) > 0).astype(np.int64)
DATA = ArrayData(
    training=Labelled(x=X[:25], targets=Y[:25]),
    validating=Labelled(x=X[25:], targets=Y[25:]),
    task=task_for("classification", classes=["0", "1"]),
)
KERNEL = np.float32([[0.3, -0.2], [-0.5, 0.4], [0.1, 0.2]])


def network(kernel: np.ndarray = KERNEL, *, softmax: bool = False) -> TorchNetwork:
    """Return a linear classifier of images of one pixel, with the weights ``kernel``."""
    nn = torch.nn
    linear = nn.Linear(*kernel.shape)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(kernel.T.copy()))
        linear.bias.zero_()
    module = nn.Sequential(nn.Flatten(), linear, *([nn.Softmax(dim=1)] if softmax else []))
    recipe = TorchRecipe(name="x:y", options={}, image_shape=(1, 1, 3), classes=kernel.shape[1])
    return TorchNetwork(module=module, recipe=recipe)


def twin(kernel: np.ndarray = KERNEL, *, softmax: bool = False) -> Any:
    """Return the same classifier in Keras."""
    import keras

    x = keras.Input((1, 1, 3))
    activation = "softmax" if softmax else None
    dense = keras.layers.Dense(kernel.shape[1], activation=activation)
    model = keras.Model(x, dense(keras.layers.Flatten()(x)))
    dense.set_weights([kernel, np.zeros(kernel.shape[1], np.float32)])
    return model


def kernel_of(trained: TorchNetwork) -> np.ndarray:
    weight: np.ndarray = trained.module[1].weight.detach().numpy().T
    return weight


@pytest.mark.matrix_except("False-adamw-0.1-0.2", "True-sgd")
@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adam"},
        {"optimizer": "adam", "weight_decay": 0.1},
        {"optimizer": "adamw"},
        {"optimizer": "adamw", "weight_decay": 0.1, "label_smoothing": 0.2},
        {"optimizer": "sgd"},
        {"optimizer": "sgd", "weight_decay": 0.1, "label_smoothing": 0.1},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
@pytest.mark.parametrize("is_softmax", [False, True])
def test_fit_network_ends_as_keras_does(options: dict[str, Any], is_softmax: bool) -> None:
    # Several batches an epoch: another order would give other weights.
    schedule = TrainingSettings(
        epochs=5, batch_size=10, learning_rate=0.2, augment="none", **options
    )
    given: dict[str, Any] = {"seed": 1, "progress": NullProgress()}
    given["label_smoothing"] = schedule.label_smoothing
    torch_fitting.seed_everything(1)
    ours = network(softmax=is_softmax)
    rows = torch_fitting.fit_network(ours, DATA, schedule, **given)
    fitting.make_deterministic(1)
    model = twin(softmax=is_softmax)
    expected = fitting.fit(model, DATA, schedule, **given)
    np.testing.assert_allclose(kernel_of(ours), model.get_weights()[0], rtol=2e-3, atol=2e-4)
    for row, other in zip(rows, expected, strict=True):
        assert row.loss == pytest.approx(other.loss, rel=1e-3)
        assert row.val_loss == pytest.approx(other.val_loss, rel=1e-3)
        assert row.accuracy == pytest.approx(other.accuracy)
        assert row.val_accuracy == other.val_accuracy
        assert row.lr == pytest.approx(other.lr, abs=1e-6)
        assert row.kept is None


def test_fit_network_distils_and_keeps_the_best_as_keras_does() -> None:
    teacher = np.float32([[-2, 2], [-2, 2], [-2, 2]])
    schedule = QATSettings(epochs=4, batch_size=25, learning_rate=0.5, augment="none")
    given: dict[str, Any] = {"seed": 2, "progress": NullProgress(), "keep_best": True}
    given["distillation"] = 0.75
    torch_fitting.seed_everything(2)
    ours = network()
    rows = torch_fitting.fit_network(ours, DATA, schedule, teacher=network(teacher), **given)
    fitting.make_deterministic(2)
    model = twin()
    expected = fitting.fit(model, DATA, schedule, teacher=twin(teacher), **given)
    assert [row.epoch for row in rows] == [0, 1, 2, 3, 4]
    assert [row.kept for row in rows] == [row.kept for row in expected]
    assert not rows[0].kept
    np.testing.assert_allclose(kernel_of(ours), model.get_weights()[0], rtol=2e-3, atol=2e-4)


def test_fit_network_keeps_a_model_that_training_makes_worse() -> None:
    best = np.float32([[-9, 9], [-9, 9], [-9, 9]])
    ours = network(best)
    schedule = QATSettings(epochs=2, batch_size=8, learning_rate=9.0, optimizer="sgd")
    smoothed = {"label_smoothing": 0.9, "keep_best": True}
    rows = torch_fitting.fit_network(
        ours, DATA, schedule, seed=0, progress=NullProgress(), **smoothed
    )
    assert np.all((kernel_of(ours) == best) == (rows[0].kept == 1))


def test_fit_network_of_no_epochs_leaves_the_model_as_it_came() -> None:
    ours = network()
    schedule = QATSettings(epochs=0)
    assert torch_fitting.fit_network(ours, DATA, schedule, seed=0, progress=NullProgress()) == []
    np.testing.assert_array_equal(kernel_of(ours), KERNEL)
    assert not ours.module.training


def test_fit_network_tells_every_batch(progress: Any) -> None:
    schedule = TrainingSettings(epochs=2, batch_size=10, augment="none")
    torch_fitting.fit_network(network(), DATA, schedule, seed=0, progress=progress)
    assert progress.updates == [("training", done, 6) for done in range(1, 7)]


def test_learning_rate_falls_by_half_a_cosine() -> None:
    schedule = TrainingSettings(epochs=2, learning_rate=0.5)
    loss = TorchCrossEntropy(2, 0.0, probabilities=False)
    training = torch_fitting.Training(network(), schedule, 2, loss)
    rates = []
    for _ in range(5):
        rates.append(training.learning_rate)
        training._done += 1
    assert rates == pytest.approx([0.5, 0.4267767, 0.25, 0.0732233, 0.0])


def test_predict_network_runs_in_inference_and_in_order() -> None:
    dropout = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.9))
    recipe = TorchRecipe(name="x:y", options={}, image_shape=(1, 1, 3), classes=3)
    ours = TorchNetwork(module=dropout.train(), recipe=recipe)
    found = np.concatenate([*torch_fitting.predict_network(ours, [X[:3], X[3:5]])])
    np.testing.assert_array_equal(found, X[:5].reshape(5, 3))
    assert dropout.training


def test_fit_network_leaves_a_lone_sample_out(progress: Any) -> None:
    normed = network()
    normed.module.insert(1, torch.nn.BatchNorm1d(3))
    schedule = TrainingSettings(epochs=2, batch_size=24, augment="none")
    rows = torch_fitting.fit_network(normed, DATA, schedule, seed=0, progress=progress)
    assert len(progress.updates) == 4
    assert int(normed.module[1].num_batches_tracked) == 2
    assert all(row.accuracy * 24 == pytest.approx(round(row.accuracy * 24)) for row in rows)


def test_fit_network_trains_on_batches_of_one(progress: Any) -> None:
    ours = network()
    schedule = TrainingSettings(epochs=1, batch_size=1, augment="none", learning_rate=0.01)
    (row,) = torch_fitting.fit_network(ours, DATA, schedule, seed=0, progress=progress)
    assert row.accuracy * 25 == pytest.approx(round(row.accuracy * 25))
    assert len(progress.updates) == 25


@pytest.mark.parametrize("policy", [None, "learned"])
def test_fit_network_sums_gradients_over_the_parts_of_a_batch(
    policy: str | None, progress: Any
) -> None:
    kernels, told = [], []
    for parts in (1, 3):
        ours = quantized(policy) if policy else network()
        schedule = TrainingSettings(
            epochs=3,
            batch_size=24,
            accumulate_steps=parts,
            optimizer="sgd",
            learning_rate=0.05,
            augment="none",
        )
        rows = torch_fitting.fit_network(ours, DATA, schedule, seed=0, progress=progress)
        kernels.append([value.detach().numpy() for value in ours.module.parameters()])
        told.append([(row.loss, row.accuracy) for row in rows])
    for whole, parted in zip(*kernels, strict=True):
        np.testing.assert_allclose(parted, whole, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(told[1], told[0], rtol=1e-4)


def quantized(policy: str) -> TorchNetwork:
    """Return the classifier with quantizers of a policy."""
    import qat_lib.torch

    plain, example = network(), torch.zeros(1, 3, 1, 1)
    plan = qat_lib.torch.plan_quantization(plain.module.eval(), example_input=example)
    made = qat_lib.torch.apply_plan(
        plain.module, plan.with_range_policy(policy), example_input=example
    )
    return TorchNetwork(module=made, recipe=plain.recipe)


@pytest.mark.parametrize(
    ("rows", "size", "ends"),
    [
        (7, None, [7]),
        (7, 8, [7]),
        (8, 4, [4, 8]),
        (9, 4, [4, 9]),
        (10, 4, [4, 8, 10]),
        (1, 4, [1]),
        (3, 1, [1, 2, 3]),
    ],
)
def test_parts_leave_no_row_alone(rows: int, size: int | None, ends: list[int]) -> None:
    parts = torch_fitting._parts(rows, size)
    assert [part.stop for part in parts] == ends
    assert [part.start for part in parts] == [0, *ends[:-1]]
