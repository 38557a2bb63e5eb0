"""PyTorch network of the pipeline, stored without code."""

from __future__ import annotations

import pickle
import zipfile
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import fx, nn

from qat_lib.errors import UnsupportedModelError
from qat_lib.support.foreign_errors import describe_error
from qat_lib.torch import apply_plan
from qat_lib.torch.graph import ModuleGraph
from qat_lib.torch.inference import in_inference
from qat_lib.torch.models import build_reference_model, load_weights
from qat_lib.torch.tracing import trace_module
from qatline.components.artifacts.models import ModelFolder, TorchRecipe
from qatline.components.settings import ModelSettings
from qatline.components.store.fingerprints import user_code_digest
from qatline.components.support.other_tasks import OTHER_TASKS
from qatline.components.support.user_code import call_with, import_callable


@dataclass(frozen=True, kw_only=True, eq=False)
class TorchNetwork:
    """A module with the recipe of its float form.

    Attributes:
        module: the module, quantized or not.
        recipe: builder of its float form.
    """

    module: nn.Module
    recipe: TorchRecipe

    @cached_property
    def traced(self) -> fx.GraphModule:
        """Graph of the module; it shares the module's parameters."""
        return trace_module(self.module, 1)

    @property
    def device(self) -> torch.device:
        """Device of its parameters."""
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))

    @property
    def example(self) -> torch.Tensor:
        """Two images of zeros in the module's layout."""
        height, width, channels = self.recipe.image_shape
        return torch.zeros(2, channels, height, width, device=self.device)

    def tensor(self, images: np.ndarray) -> torch.Tensor:
        """Return images ``(samples, height, width, channels)`` in the module's layout."""
        # A copy: arrays of tf.data are read-only, and PyTorch requires writable memory.
        first = np.moveaxis(images, -1, 1).astype(np.float32, order="C", copy=True)
        return torch.from_numpy(first).to(self.device)


def open_network(
    settings: ModelSettings, image_shape: tuple[int, int, int], classes: int
) -> tuple[TorchNetwork, bool]:
    """Return the network selected by ``settings``, and whether it is already trained.

    Args:
        settings: the model section.
        image_shape: (height, width, channels) of the data.
        classes: number of classes of the data.

    Raises:
        ConfigError: the name, its options or its weights are wrong.
        UnsupportedModelError: the module does not fit the data, or torch.fx cannot trace it.
    """
    recipe = TorchRecipe(
        name=settings.name,
        options=settings.options,
        image_shape=image_shape,
        classes=classes,
        code=user_code_digest(settings.name),
    )
    network = build_network(recipe)
    if settings.weights:
        load_weights(network.module, settings.weights)
    trained = bool(settings.weights) if settings.trained is None else settings.trained
    return _on_best_device(network), trained


def build_network(recipe: TorchRecipe) -> TorchNetwork:
    """Return a float network with initial weights, on the CPU.

    Raises:
        ConfigError, UnsupportedModelError: as in ``open_network``.
    """
    module = _build(recipe)
    if not isinstance(module, nn.Module):
        raise UnsupportedModelError(
            f"model.name: expected {recipe.name!r} to return a torch.nn.Module, received "
            f"{type(module).__name__}."
        )
    network = TorchNetwork(module=module, recipe=recipe)
    check_network(network)
    return network


def check_network(network: TorchNetwork) -> None:
    """Check that a network accepts the images and returns one value per class.

    Raises:
        UnsupportedModelError: it does not, or torch.fx cannot trace it.
    """
    recipe, module = network.recipe, network.module
    height, width, channels = recipe.image_shape
    with in_inference(module), torch.no_grad():
        try:
            outputs = module(network.example)
        except Exception as error:  # the user's own code
            raise UnsupportedModelError(
                f"The model {recipe.name!r} can't run on images of shape "
                f"{(channels, height, width)} (channels, height, width): {describe_error(error)}. "
                "Set data.image_size (and data.color), or take another model."
            ) from error
    shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else None
    if shape != (2, recipe.classes):
        received = type(outputs).__name__ if shape is None else f"outputs of shape {shape[1:]}"
        raise UnsupportedModelError(
            f"The model {recipe.name!r} gives {received}, but the data has {recipe.classes} "
            f"classes: expected ({recipe.classes},). Change the last layer, or data.classes. "
            f"{OTHER_TASKS}"
        )
    graph = ModuleGraph(network.traced)
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        raise UnsupportedModelError(
            f"The pipeline trains models with one input and one output. {recipe.name!r} has "
            f"{len(graph.inputs)} and {len(graph.outputs)}. {OTHER_TASKS}"
        )


def ends_in_softmax(network: TorchNetwork) -> bool:
    """Return whether the outputs are softmax probabilities instead of logits."""
    graph = ModuleGraph(network.traced)
    (result,) = graph.outputs
    call = graph.producer(result)
    while call.traits.is_quantizer or isinstance(call.operation, nn.Identity):
        call = graph.producer(call.inputs[0])
    return isinstance(call.operation, nn.Softmax) or call.traits.class_name == "softmax"


def save_network(network: TorchNetwork, folder: ModelFolder) -> None:
    """Write the state as ``model.pt`` and the recipe as ``network.json``."""
    state = {name: value.cpu() for name, value in network.module.state_dict().items()}
    torch.save(state, folder.file(folder.MODELS["torch"]))
    folder.write_recipe(network.recipe)


def load_network(folder: ModelFolder) -> TorchNetwork:
    """Return a directory's network: built, quantized by its plan, with its state.

    Raises:
        StepError: a file is missing or damaged.
        ConfigError, UnsupportedModelError: the float form can no longer be built.
    """
    network, plan = build_network(folder.recipe()), folder.plan()
    if plan is not None:
        network = replace(network, module=apply_plan(network.traced, plan))
    file = folder.model_file
    try:
        # weights_only: a pickle from the store must not execute code.
        state = torch.load(file, map_location="cpu", weights_only=True)
        network.module.load_state_dict(state)
    except (
        OSError,
        RuntimeError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        EOFError,
        pickle.UnpicklingError,
        zipfile.BadZipFile,
    ) as error:
        raise folder.damaged(file.name, describe_error(error)) from error
    return _on_best_device(network)


def _build(recipe: TorchRecipe) -> Any:
    height, width, channels = recipe.image_shape
    given = {
        "input_shape": (channels, height, width),
        "channels": channels,
        "classes": recipe.classes,
    }
    if ":" in recipe.name:
        function = import_callable("model.name", recipe.name)
        return call_with("model.name", recipe.name, function, given, recipe.options)
    options = {"channels": channels, "classes": recipe.classes, **recipe.options}
    return build_reference_model(recipe.name, **options)


def _on_best_device(network: TorchNetwork) -> TorchNetwork:
    """Move a network to the GPU, if available."""
    if not torch.cuda.is_available():
        return network
    return replace(network, module=cast("nn.Module", network.module.to(torch.device("cuda"))))
