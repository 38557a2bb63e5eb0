"""PyTorch network of the pipeline, stored without code."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from qat_lib.errors import UnsupportedModelError
from qat_lib.support.foreign_errors import describe_error
from qat_lib.torch import apply_plan
from qat_lib.torch.border import output_name
from qat_lib.torch.graph import ModuleGraph
from qat_lib.torch.inference import in_inference
from qat_lib.torch.models import build_reference_model, load_weights
from qat_lib.torch.tracing import trace_module
from qatline.components.artifacts.models import ModelFolder, TorchRecipe
from qatline.components.settings import ModelSettings
from qatline.components.store.fingerprints import user_code_digest
from qatline.components.support.user_code import call_with, import_callable
from qatline.components.tasks.task import Outputs, Task
from qatline.components.training.framework import Shapes


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
        return trace_module(self.module, example=self.example)

    @property
    def device(self) -> torch.device:
        """Device of its parameters."""
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))

    @property
    def example(self) -> Any:
        """Two samples of zeros in the module's layout: a tensor, or several by argument name."""
        shapes = self.recipe.inputs
        if isinstance(shapes, Mapping):
            return {name: self._zeros(shape) for name, shape in shapes.items()}
        return self._zeros(shapes)

    def _zeros(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.zeros(2, *channels_first(shape), device=self.device)

    def tensors(self, batch: Any) -> Any:
        """Return inputs ``(samples, ..., channels)`` in the module's layout; several by name."""
        if isinstance(batch, Mapping):
            return {name: self.tensors(each) for name, each in batch.items()}
        # A copy: arrays of tf.data are read-only, and PyTorch requires writable memory.
        first = np.moveaxis(batch, -1, 1).astype(np.float32, order="C", copy=True)
        return torch.from_numpy(first).to(self.device)

    def __call__(self, inputs: Any) -> Any:
        """Return the outputs for tensors: one, or several by the names of an exported file.

        Channels are the last axis of the outputs, as in the data.
        """
        by_name = isinstance(inputs, Mapping)
        return torch_outputs(self.module(**inputs) if by_name else self.module(inputs))


def channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a sample in the layout of PyTorch."""
    return (*shape[-1:], *shape[:-1])


def torch_outputs(outputs: Any) -> Any:
    """Return the tensors that a module returns, with channels in the last axis.

    Returns:
        A tensor, or several by the names that ``qat_lib.torch.export_onnx`` gives them.
    """
    found = {}
    for path, value in pytree.tree_flatten_with_path(outputs)[0]:
        found[output_name(path)] = value.movedim(1, -1) if value.ndim > 2 else value
    return found if len(found) > 1 else next(iter(found.values()))


def to_numpy(outputs: Any) -> Outputs:
    """Return outputs as arrays."""
    if isinstance(outputs, Mapping):
        return {name: values.detach().cpu().numpy() for name, values in outputs.items()}
    array: np.ndarray = outputs.detach().cpu().numpy()
    return array


def open_network(settings: ModelSettings, shapes: Shapes, task: Task) -> tuple[TorchNetwork, bool]:
    """Return the network selected by ``settings``, and whether it is already trained.

    Args:
        settings: the model section.
        shapes: shape of a sample of the only input, or of each of several by name.
        task: meaning of its outputs.

    Raises:
        ConfigError: the name, its options or its weights are wrong.
        UnsupportedModelError: the module does not fit the data, or torch.fx cannot trace it.
    """
    network = make_network(settings, shapes, task)
    check_network(network, task)
    if settings.weights:
        load_weights(network.module, settings.weights)
    trained = bool(settings.weights) if settings.trained is None else settings.trained
    return _on_best_device(network), trained


def make_network(settings: ModelSettings, shapes: Shapes, task: Task) -> TorchNetwork:
    """Return the network selected by ``settings``, unchecked and without weights.

    Arguments and errors match ``open_network``.
    """
    recipe = TorchRecipe(
        name=settings.name,
        options=settings.options,
        inputs=dict(shapes) if isinstance(shapes, Mapping) else shapes,
        classes=len(task.data.classes),
        output_shape=task.output_shape,
        task=task.data.task,
        code=user_code_digest(settings.name),
    )
    return build_network(recipe)


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
    return TorchNetwork(module=module, recipe=recipe)


def check_network(network: TorchNetwork, task: Task) -> None:
    """Check that a network takes the inputs of its recipe, and that its outputs fit the task.

    Raises:
        UnsupportedModelError: it does not, or torch.fx cannot trace it.
    """
    recipe, module = network.recipe, network.module
    with in_inference(module), torch.no_grad():
        try:
            outputs = network(network.example)
        except Exception as error:  # the user's own code
            raise UnsupportedModelError(
                f"The model {recipe.name!r} can't run on inputs of shape "
                f"{_input_shapes(recipe)} (channels first): {describe_error(error)}. "
                "Set data.image_size (and data.color), or take another model."
            ) from error
    named = outputs if isinstance(outputs, Mapping) else {"output": outputs}
    if any(not isinstance(each, torch.Tensor) for each in named.values()):
        raise UnsupportedModelError(
            f"The model {recipe.name!r} returns values other than tensors. Return one tensor, or "
            "several in a dict."
        )
    shapes = {name: tuple(each.shape[1:]) for name, each in named.items()}
    task.check_outputs(shapes, recipe.name)
    ModuleGraph(network.traced)


def _input_shapes(recipe: TorchRecipe) -> Any:
    if isinstance(recipe.inputs, Mapping):
        return {name: channels_first(shape) for name, shape in recipe.inputs.items()}
    return channels_first(recipe.inputs)


def torch_activation(network: TorchNetwork) -> str:
    """Return the last operation, ``softmax`` or ``sigmoid``; empty for others."""
    graph = ModuleGraph(network.traced)
    if len(graph.outputs) != 1:
        return ""
    call = graph.producer(graph.outputs[0])
    while call.traits.is_quantizer or isinstance(call.operation, nn.Identity):
        call = graph.producer(call.inputs[0])
    name = call.traits.class_name.lower()
    return name if name in ("softmax", "sigmoid") else ""


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
    given = {
        "input_shape": _input_shapes(recipe),
        "classes": recipe.classes,
        "output_shape": recipe.output_shape or (recipe.classes,),
        "task": recipe.task,
    }
    if not isinstance(recipe.inputs, Mapping):
        given["channels"] = recipe.inputs[-1]
    if ":" in recipe.name:
        function = import_callable("model.name", recipe.name)
        return call_with("model.name", recipe.name, function, given, recipe.options)
    # The reference networks return a vector.
    outputs = {"channels": given.get("channels"), "classes": given["output_shape"][-1]}
    return build_reference_model(recipe.name, **{**outputs, **recipe.options})


def _on_best_device(network: TorchNetwork) -> TorchNetwork:
    """Move a network to the GPU, if available."""
    if not torch.cuda.is_available():
        return network
    return replace(network, module=cast("nn.Module", network.module.to(torch.device("cuda"))))
