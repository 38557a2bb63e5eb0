"""PyTorch, as the steps use it; see ``qatline.components.training.framework``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import qat_lib.torch
from qat_lib.errors import ConfigError
from qat_lib.export.ranges import RangeOwner
from qat_lib.torch.capture import Example
from qat_lib.torch.quantizers import read_quantizers
from qatline.components.artifacts.models import Epoch, ModelFolder
from qatline.components.settings import ModelSettings, QATSettings, TrainingSettings
from qatline.components.support.frameworks import FRAMEWORKS
from qatline.components.training import torch_fitting, torch_network
from qatline.components.training.framework import Framework, TrainingData
from qatline.components.training.torch_network import TorchNetwork

if TYPE_CHECKING:
    from qat_lib.core.plan import QuantizationPlan
    from qat_lib.core.spec import QuantizationSpec
    from qat_lib.export.options import ExportOptions
    from qat_lib.options import Cpu


class TorchFramework:
    """PyTorch; a model is a ``TorchNetwork``, whose images have their channels first."""

    traits = FRAMEWORKS["torch"]
    layer_check = "qat_lib.torch.check_parity(module, path, images, layers=True)"

    def make_deterministic(self, seed: int) -> None:
        """Seed Python, NumPy, PyTorch and ``tf.data``."""
        torch_fitting.seed_everything(seed)

    def open_model(
        self, settings: ModelSettings, image_shape: tuple[int, int, int], classes: int
    ) -> tuple[TorchNetwork, bool]:
        """Return the network that ``settings`` name, and whether it is trained already."""
        return torch_network.open_network(settings, image_shape, classes)

    def name(self, model: TorchNetwork) -> str:
        """Return the name of what builds it."""
        return model.recipe.name.rpartition(":")[2]

    def parameters(self, model: TorchNetwork) -> int:
        """Return the number of its parameters; statistics of batch norm are none."""
        return sum(parameter.numel() for parameter in model.module.parameters())

    def gives_probabilities(self, model: TorchNetwork) -> bool:
        """Whether its last operation is a softmax."""
        return torch_network.ends_in_softmax(model)

    def fit(
        self,
        model: TorchNetwork,
        data: Path | TrainingData,
        schedule: TrainingSettings | QATSettings,
        **options: Any,
    ) -> list[Epoch]:
        """Train a network in place."""
        return torch_fitting.fit_network(model, data, schedule, **options)

    def predict(self, model: TorchNetwork, batches: Iterable[np.ndarray]) -> np.ndarray:
        """Return the outputs of inference."""
        return torch_fitting.predict_network(model, batches)

    def plan(
        self,
        model: TorchNetwork,
        mode: Any,
        spec: QuantizationSpec | None,
        cases: Sequence[Any],
        *,
        unsigned: bool,
        cpu: Cpu | None = None,
    ) -> QuantizationPlan:
        """Decide which tensors get a quantizer."""
        return qat_lib.torch.plan_quantization(
            model.traced, mode, spec, cases, example_input=model.example, unsigned=unsigned, cpu=cpu
        )

    def apply(self, model: TorchNetwork, plan: QuantizationPlan) -> TorchNetwork:
        """Return a quantized copy of a network."""
        return torch_network.apply_to_network(model, plan)

    def calibrate(
        self,
        model: TorchNetwork,
        batches: Iterable[tuple[np.ndarray, Any]],
        method: str,
        *,
        percentile: float,
        freeze: bool,
        on_batch: Callable[[int], None],
    ) -> Any:
        """Set the ranges of a quantized network."""
        return qat_lib.torch.calibrate(
            model.module,
            _tensors(model, batches),
            method,
            percentile=percentile,
            freeze=freeze,
            on_batch=on_batch,
        )

    def diagnose(
        self,
        model: TorchNetwork,
        batches: Iterable[tuple[np.ndarray, Any]],
        layers: int,
    ) -> None:
        """Return None: only Keras models are diagnosed."""

    def equalize(
        self,
        model: TorchNetwork,
        setting: Literal["auto"] | bool,
        batches: Iterable[tuple[np.ndarray, Any]],  # noqa: ARG002
        quantize: Callable[[Any, Any], Any],  # noqa: ARG002
    ) -> tuple[TorchNetwork, bool]:
        """Return the network as it is, or refuse: only Keras models are equalized."""
        if setting is True:
            raise ConfigError(
                "quantization.equalize is there for Keras models only. Received a PyTorch model: "
                "set quantization.equalize=false."
            )
        return model, False

    def correct_bias(
        self,
        model: TorchNetwork,
        batches: Iterable[tuple[np.ndarray, Any]],
        *,
        on_layer: Callable[[int, int], None],
    ) -> int:
        """Correct the biases of a quantized network."""
        report = qat_lib.torch.correct_bias(
            model.module, _tensors(model, batches), on_layer=on_layer
        )
        return len(report.shifts)

    def adaround(
        self,
        model: TorchNetwork,  # noqa: ARG002
        batches: Iterable[tuple[np.ndarray, Any]],  # noqa: ARG002
        **options: Any,  # noqa: ARG002
    ) -> tuple[int, int]:
        """Refuse: only Keras models are rounded by their outputs."""
        raise ConfigError(
            "quantization.rounding=adaround is there for Keras models only. Received a PyTorch "
            "model: set quantization.rounding=nearest."
        )

    def quantizers(self, model: TorchNetwork) -> Mapping[str, RangeOwner]:
        """Return the quantizers of a network by name."""
        owners = read_quantizers(model.module, Example.of(model.example, batch=None))
        return {owner.name: owner for owner in owners}

    def save(self, model: TorchNetwork, folder: ModelFolder) -> None:
        """Write ``model.pt`` and ``network.json``."""
        torch_network.save_network(model, folder)

    def load(self, folder: ModelFolder) -> TorchNetwork:
        """Return the network, built by its name, with the state of ``model.pt``."""
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
        """Export a network; the file takes NCHW."""
        if signed:
            for quantizer in qat_lib.torch.model_quantizers(model.module).values():
                quantizer.unsigned = False
        options = replace(options, channels_first_input=False)  # channels are first already
        return qat_lib.torch.export_onnx(
            model.module, path, example_input=model.example, options=options, **about
        )

    def check_parity(self, model: TorchNetwork, path: Path, images: np.ndarray) -> Any:
        """Compare an exported file with its network."""
        return qat_lib.torch.check_parity(
            model.module, path, np.ascontiguousarray(np.moveaxis(images, -1, 1))
        )


def _tensors(network: TorchNetwork, batches: Iterable[tuple[np.ndarray, Any]]) -> Iterator[Any]:
    """Yield the images of batches as the network takes them."""
    for x, _ in batches:
        yield network.tensor(x)


FRAMEWORK: Framework = TorchFramework()
