"""Read a model's graph with its framework's front end."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from qat_lib.graph.call_graph import CallGraph


def read_graph(model: Any) -> CallGraph:
    """Return the graph of a model.

    Args:
        model: a Functional or Sequential Keras model, or a PyTorch module that ``torch.fx`` traces.

    Raises:
        UnsupportedModelError: its graph is not known.
    """
    if is_module(model):
        # A front end is imported with the first model of its framework, not before.
        graph: CallGraph = import_module("qat_lib.torch.graph").ModuleGraph(model)
    else:
        graph = import_module("qat_lib.keras.graph.layer_graph").LayerGraph(model)
    return graph


def is_module(model: Any) -> bool:
    """Whether the model is a PyTorch module.

    PyTorch is not imported for the answer.
    """
    return any(base.__module__.partition(".")[0] == "torch" for base in type(model).__mro__)
