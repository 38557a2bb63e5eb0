"""PyTorch networks of the pipeline: built by name, checked, written and read."""

from __future__ import annotations

import pickle
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qat_lib.errors import ConfigError, StepError, UnsupportedModelError
from qatline.components.artifacts import Baseline, Quantized
from qatline.components.artifacts.models import TorchRecipe
from qatline.components.settings import ModelSettings
from qatline.components.store.manifest import describe
from qatline.components.tasks import Task, task_for

torch = pytest.importorskip("torch")

import qat_lib.torch  # noqa: E402
from qat_lib.torch.tracing import GraphTracer  # noqa: E402
from qatline.components.training import torch_network  # noqa: E402
from qatline.components.training.torch_framework import TorchFramework  # noqa: E402
from qatline.components.training.torch_network import (  # noqa: E402
    TorchNetwork,
    load_network,
    open_network,
    save_network,
    torch_activation,
)

SHAPE = (6, 5, 3)


def classifier(classes: int) -> Task:
    """Return the classification of some classes."""
    return task_for("classification", classes=list(map(str, range(classes))))


X = np.random.default_rng(0).normal(size=(4, *SHAPE)).astype(np.float32)
SOURCE = """
    from torch import nn

    def build(channels, classes, width=4, softmax=False):
        return nn.Sequential(
            nn.Conv2d(channels, width, 3),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, classes),
            *([nn.Softmax(dim=1)] if softmax else []),
        )

    def by_shape(input_shape, classes):
        channels, height, width = input_shape
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes))

    def wide(classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(90, classes + 1))

    def small():
        return nn.Linear(7, 7)

    class Branching(nn.Module):
        def forward(self, x):
            return x[:, :2, 0, 0] if x.sum() > 0 else x[:, :2, 1, 1]

    def text():
        return "no module"
"""


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Put a module of the user's own on the path; return its name."""
    (tmp_path / "users_networks.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.syspath_prepend(tmp_path)
    yield "users_networks"
    sys.modules.pop("users_networks", None)


def settings(name: str, **values: Any) -> ModelSettings:
    return ModelSettings(framework="torch", name=name, **values)


def outputs(network: Any) -> np.ndarray:
    return np.concatenate([*TorchFramework().predict(network, [X])])


def test_a_users_function_gets_what_it_names(users: str) -> None:
    network, trained = open_network(
        settings(f"{users}:build", options={"width": 7}), SHAPE, classifier(4)
    )
    assert network.module[0].weight.shape == (7, 3, 3, 3)
    assert not trained
    assert outputs(network).shape == (4, 4)
    network, _ = open_network(settings(f"{users}:by_shape"), SHAPE, classifier(2))
    assert outputs(network).shape == (4, 2)


def test_reference_networks_are_built_for_the_data() -> None:
    network, _ = open_network(settings("resnet20_cifar10"), (8, 8, 1), classifier(10))
    assert TorchFramework().parameters(network) == 269_434
    assert TorchFramework().name(network) == "resnet20_cifar10"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "wide",
            r"gives outputs of shape \(3,\), but the data has 2 classes.*task\.name",
        ),
        ("small", r"can't run on inputs of shape \(3, 6, 5\)"),
        ("Branching", "torch.fx"),
        ("text", "to return a torch.nn.Module, received str"),
    ],
)
def test_a_network_that_does_not_fit_is_refused(users: str, function: str, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        open_network(settings(f"{users}:{function}"), SHAPE, classifier(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 3}, "model.options do not fit resnet20_cifar10"),
    ],
)
def test_options_of_a_reference_network_are_checked(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_network(settings("resnet20_cifar10", options=options), (8, 8, 1), classifier(10))


def test_weights_are_loaded_by_name(users: str, tmp_path: Path) -> None:
    source, _ = open_network(settings(f"{users}:build"), SHAPE, classifier(2))
    state = {name: value.numpy() for name, value in source.module.state_dict().items()}
    np.savez(tmp_path / "w.npz", **state)
    given = settings(f"{users}:build", weights=str(tmp_path / "w.npz"))
    network, trained = open_network(given, SHAPE, classifier(2))
    assert trained
    np.testing.assert_array_equal(outputs(network), outputs(source))
    _, trained = open_network(given.model_copy(update={"trained": False}), SHAPE, classifier(2))
    assert not trained


@pytest.mark.parametrize("quantized", [False, True])
def test_a_written_network_is_read_as_it_was(users: str, tmp_path: Path, quantized: bool) -> None:
    folder = Quantized(tmp_path / "step")
    folder.path.mkdir()
    network, _ = open_network(settings(f"{users}:build"), SHAPE, classifier(2))
    if quantized:
        plan = qat_lib.torch.plan_quantization(network.traced, unsigned=True)
        network = replace(network, module=qat_lib.torch.apply_plan(network.traced, plan))
        qat_lib.torch.calibrate(network.module, network.tensors(X), "max")
        folder.write_plan(plan)
    save_network(network, folder)
    found = load_network(folder)
    assert folder.framework == "torch"
    assert found.recipe == network.recipe
    np.testing.assert_array_equal(outputs(found), outputs(network))


def test_equal_networks_are_written_as_equal_files(users: str, tmp_path: Path) -> None:
    network, _ = open_network(settings(f"{users}:build"), SHAPE, classifier(2))
    digests = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save_network(network, Baseline(tmp_path / name))
        digests.add(describe(tmp_path / name).digest)
    assert len(digests) == 1


def test_recipe_changes_with_the_users_code(users: str, tmp_path: Path) -> None:
    network, _ = open_network(settings(f"{users}:build"), SHAPE, classifier(2))
    source = tmp_path / "users_networks.py"
    source.write_text(source.read_text() + "\n# changed\n")
    changed, _ = open_network(settings(f"{users}:build"), SHAPE, classifier(2))
    assert changed.recipe.code != network.recipe.code
    assert open_network(settings("resnet20_cifar10"), (8, 8, 1), classifier(2))[0].recipe.code == ""


class Runs:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("code of a file was run",))


def test_a_file_with_code_is_refused(users: str, tmp_path: Path) -> None:
    folder = Baseline(tmp_path)
    network, _ = open_network(settings(f"{users}:build"), SHAPE, classifier(2))
    save_network(network, folder)
    torch.save({"0.weight": Runs()}, folder.model_file)
    with pytest.raises(StepError, match=r"model\.pt can't be read.*Run train_baseline again"):
        load_network(folder)
    folder.model_file.write_bytes(pickle.dumps(Runs(), protocol=2))
    with pytest.raises(StepError, match=r"model\.pt can't be read"):
        load_network(folder)


@pytest.mark.parametrize("damage", ["half", "other", "empty"])
def test_a_damaged_file_is_refused(users: str, tmp_path: Path, damage: str) -> None:
    folder = Baseline(tmp_path)
    network, _ = open_network(settings(f"{users}:build"), SHAPE, classifier(2))
    save_network(network, folder)
    file = folder.model_file
    if damage == "other":
        torch.save({"0.weight": torch.zeros(2)}, file)
    else:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2 if damage == "half" else 0])
    with pytest.raises(StepError, match=r"model\.pt can't be read"):
        load_network(folder)


def test_a_damaged_recipe_is_refused(users: str, tmp_path: Path) -> None:
    folder = Baseline(tmp_path)
    network, _ = open_network(settings(f"{users}:build"), SHAPE, classifier(2))
    save_network(network, folder)
    folder.file(folder.RECIPE).write_text('{"name": "x"}')
    with pytest.raises(StepError, match=r"network\.json can't be read: options"):
        load_network(folder)


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("quantized", [False, True])
def test_torch_activation_sees_a_softmax(users: str, softmax: bool, quantized: bool) -> None:
    given = settings(f"{users}:build", options={"softmax": softmax})
    network, _ = open_network(given, SHAPE, classifier(2))
    if quantized:
        plan = qat_lib.torch.plan_quantization(network.traced)
        network = replace(network, module=qat_lib.torch.apply_plan(network.traced, plan))
    assert (torch_activation(network) == "softmax") is softmax


def test_torch_activation_sees_the_function() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.softmax(x, dim=1)

    recipe = TorchRecipe(name="a:b", options={}, image_shape=SHAPE, classes=2, code="")
    assert torch_activation(TorchNetwork(module=Model(), recipe=recipe)) == "softmax"


def test_network_is_traced_once(users: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    trace = GraphTracer.trace
    monkeypatch.setattr(
        GraphTracer, "trace", lambda self, root: modes.append(root.training) or trace(self, root)
    )
    network, _ = open_network(settings(f"{users}:build"), SHAPE, classifier(2))
    framework = TorchFramework()
    framework.last_activation(network)
    plan = qat_lib.torch.plan_quantization(framework.bare(network))
    framework.last_activation(
        replace(network, module=qat_lib.torch.apply_plan(network.traced, plan))
    )
    assert sorted(modes) == [False, True]


def test_networks_go_to_the_gpu_where_there_is_one(
    users: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, device: moved.append(device) or self)
    torch_network.open_network(settings(f"{users}:build"), SHAPE, classifier(2))
    assert moved == [torch.device("cuda")]
