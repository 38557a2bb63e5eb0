"""PyTorch front end of the steps; see ``qatline.components.training.framework``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import qat_lib.torch
from qat_lib.errors import UnsupportedModelError
from qat_lib.export.ranges import RangeOwner
from qat_lib.torch.capture import Example
from qat_lib.torch.models import load_weights
from qat_lib.torch.planner import module_graph
from qat_lib.torch.quantizers import read_quantizers
from qatline.components.artifacts.models import Epoch, ModelFolder
from qatline.components.settings import ModelSettings, QATSettings, TrainingSettings
from qatline.components.support.frameworks import FRAMEWORKS
from qatline.components.tasks.task import Outputs, Task
from qatline.components.training import torch_fitting, torch_network
from qatline.components.training.framework import Framework, Shapes, TrainingData
from qatline.components.training.torch_network import TorchNetwork

if TYPE_CHECKING:
    from qat_lib.export.options import ExportOptions


class TorchFramework:
    """PyTorch front end; a model is a ``TorchNetwork`` with channels-first images."""

    traits = FRAMEWORKS["torch"]
    layer_check = "qat_lib.torch.check_parity(module, path, images, layers=True)"

    def make_deterministic(self, seed: int) -> None:
        """Seed Python, NumPy, PyTorch and ``tf.data``."""
        torch_fitting.seed_everything(seed)

    def build_model(self, settings: ModelSettings, shapes: Shapes, task: Task) -> TorchNetwork:
        """Return the network selected by ``settings``, without weights."""
        return torch_network.make_network(settings, shapes, task)

    def load_weights(self, model: TorchNetwork, path: str) -> None:
        """Load a ``.npz`` file."""
        load_weights(model.module, path)

    def open_model(
        self, settings: ModelSettings, shapes: Shapes, task: Task
    ) -> tuple[TorchNetwork, bool]:
        """Return the network selected by ``settings``, and whether it is already trained."""
        return torch_network.open_network(settings, shapes, task)

    def check_model(self, model: TorchNetwork, shapes: Shapes, task: Task) -> None:
        """Check that a network takes such inputs and fits the task."""
        if model.recipe.inputs != shapes:
            raise UnsupportedModelError(
                f"The model {model.recipe.name!r} expects inputs of shape {model.recipe.inputs}, "
                f"but the data has {shapes}."
            )
        torch_network.check_network(model, task)

    def name(self, model: TorchNetwork) -> str:
        """Return the name of its builder."""
        return model.recipe.name.rpartition(":")[2]

    def parameters(self, model: TorchNetwork) -> int:
        """Return the number of its parameters, without batch norm statistics."""
        return sum(parameter.numel() for parameter in model.module.parameters())

    def last_activation(self, model: TorchNetwork) -> str:
        """Return the last activation."""
        return torch_network.torch_activation(model)

    def fit(
        self,
        model: TorchNetwork,
        data: Path | TrainingData,
        schedule: TrainingSettings | QATSettings,
        **options: Any,
    ) -> list[Epoch]:
        """Train a network in place."""
        return torch_fitting.fit_network(model, data, schedule, **options)

    def predict(self, model: TorchNetwork, batches: Iterable[Any]) -> Iterator[Outputs]:
        """Yield the inference outputs."""
        return torch_fitting.predict_network(model, batches)

    def mean_loss(
        self,
        model: TorchNetwork,
        task: Task,
        targets: Any,
        outputs: Outputs,
        label_smoothing: float,
    ) -> float:
        """Return the mean loss of a batch's outputs."""
        loss = task.torch_loss(self.last_activation(model), label_smoothing)
        return torch_fitting.mean_loss(loss, targets, outputs)

    def bare(self, model: TorchNetwork) -> Any:
        """Return the traced module, with the shapes of its tensors."""
        return module_graph(model.traced, model.example).model

    def inputs(self, model: TorchNetwork, batches: Iterable[tuple[Any, Any]]) -> Iterator[Any]:
        """Yield the inputs as tensors."""
        for x, _ in batches:
            yield model.tensors(x)

    def with_bare(self, model: TorchNetwork, bare: Any) -> TorchNetwork:
        """Return a network with another module."""
        return replace(model, module=bare)

    def quantizers(self, model: TorchNetwork) -> Mapping[str, RangeOwner]:
        """Return the quantizers of a network by name."""
        owners = read_quantizers(model.module, Example.of(model.example, batch=None))
        return {owner.name: owner for owner in owners}

    def save(self, model: TorchNetwork, folder: ModelFolder) -> None:
        """Write ``model.pt`` and ``network.json``."""
        torch_network.save_network(model, folder)

    def load(self, folder: ModelFolder) -> TorchNetwork:
        """Return the network, built by name, with the state of ``model.pt``."""
        return torch_network.load_network(folder)

    def export_onnx(
        self,
        model: TorchNetwork,
        path: Path,
        *,
        options: ExportOptions,
        signed: bool,
        **about: Any,
    ) -> Any:
        """Export a network; the file expects NCHW."""
        if signed:
            for quantizer in qat_lib.torch.model_quantizers(model.module).values():
                quantizer.unsigned = False
        options = replace(options, channels_first_input=False)  # channels are first already
        return qat_lib.torch.export_onnx(
            model.module, path, example_input=model.example, options=options, **about
        )

    def check_parity(self, model: TorchNetwork, path: Path, inputs: Any) -> Any:
        """Compare an exported file with its network, batch by batch as given."""

        def arrays(batch: Any) -> Any:
            tensors = model.tensors(batch)
            if isinstance(tensors, Mapping):
                return {name: x.numpy(force=True) for name, x in tensors.items()}
            return tensors.numpy(force=True)

        batches = [inputs] if isinstance(inputs, np.ndarray | Mapping) else inputs
        parts = map(arrays, batches)
        return qat_lib.torch.check_parity(model.module, path, parts, batch_size=sys.maxsize)


FRAMEWORK: Framework = TorchFramework()
