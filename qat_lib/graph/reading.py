"""Dispatch from a model to the graph reader of its framework."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from qat_lib.graph.call_graph import CallGraph


def read_graph(model: Any) -> CallGraph:
    """Return the graph of a model.

    Args:
        model: a Functional or Sequential Keras model, or a PyTorch module that ``torch.fx`` can
            trace.

    Raises:
        UnsupportedModelError: the graph of the model can't be read.
    """
    if is_module(model):
        # A front end is imported on first use, so that Keras users do not need PyTorch.
        graph: CallGraph = import_module("qat_lib.torch.graph").ModuleGraph(model)
    else:
        graph = import_module("qat_lib.keras.graph.layer_graph").LayerGraph(model)
    return graph


def is_module(model: Any) -> bool:
    """Return whether the model is a PyTorch module, without importing PyTorch."""
    # A module's class derives from torch.nn.Module, so its framework is imported already.
    return any(base.__module__.partition(".")[0] == "torch" for base in type(model).__mro__)
