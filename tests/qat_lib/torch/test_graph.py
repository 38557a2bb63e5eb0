"""A module's graph: names, tensors, and what it leaves out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch_twins import Residual, Reused

from qat_lib.errors import UnsupportedModelError
from qat_lib.graph.reading import is_module, read_graph
from qat_lib.torch import quantize_model
from qat_lib.torch.graph import ModuleCatalog, ModuleGraph


def test_read_graph_takes_modules() -> None:
    graph = read_graph(Residual())
    assert isinstance(graph, ModuleGraph)
    assert is_module(graph.model)
    assert graph.composites == {}
    assert repr(graph) == "<ModuleGraph of 'Residual': 24 calls>"


def test_names_of_modules_and_functions() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU())

        def forward(self, image: Any) -> Any:
            return torch.cat([image, self.blocks(image)]) + 1

    graph = ModuleGraph(Named())
    names = [call.name for call in graph.calls]
    assert names == ["image", "blocks.0", "blocks.1", "cat", "add"]
    assert (graph.inputs, graph.outputs) == (("image:0",), ("add:0",))
    assert graph.by_name["cat"].inputs == ("image:0", "blocks.1:0")
    assert [call.traits.is_input for call in graph.calls] == [True, False, False, False, False]
    assert graph.by_name["cat"].operation is torch.cat
    assert isinstance(graph.by_name["blocks.1"].operation, nn.ReLU)


def test_further_calls_of_a_module_are_numbered() -> None:
    graph = ModuleGraph(Reused())
    calls = graph.calls_of("conv")
    assert [call.name for call in calls] == ["conv", "conv@1"]
    assert calls[0].operation is calls[1].operation
    assert [call.name for call in graph.calls_of("relu")] == ["relu", "relu@1", "relu@2"]


def test_function_yields_its_name_to_a_module() -> None:
    class Clash(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_1 = nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.add_1(x + 1 + 2)

    names = [call.name for call in ModuleGraph(Clash()).calls]
    assert names == ["x", "add", "add_1_1", "add_1"]


class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        count, width = x.shape[0], x.size(-1)
        mask = torch.ones(count, width) * self.scale.abs()
        return self.linear(x.view(x.size(0), -1) * mask + x.shape[-1])


def test_constants_and_shapes_are_no_tensors() -> None:
    graph = ModuleGraph(Constants())
    assert [call.name for call in graph.calls] == ["x", "view", "mul_1", "add", "linear"]
    assert [call.name for call, _ in graph.consumers("x:0")] == ["view"]
    assert graph.by_name["mul_1"].inputs == ("view:0",)


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4)

    def forward(self, x: Any) -> Any:
        left, right = x.chunk(2, -1)
        found, state = self.lstm(torch.cat([right, left], -1))
        return {"found": found, "state": [state[0]]}


def test_several_outputs_are_several_tensors() -> None:
    graph = ModuleGraph(Several())
    assert graph.by_name["chunk"].outputs == ("chunk:0", "chunk:1")
    assert graph.by_name["cat"].inputs == ("chunk:1", "chunk:0")
    assert graph.by_name["lstm"].outputs == ("lstm:0", "lstm:1")
    assert graph.outputs[0] == "lstm:0"
    assert graph.dtypes["lstm:0"] == "float32"


def test_input_read_twice_has_two_numbers() -> None:
    class Twice(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.add(x, other=x)

    graph = ModuleGraph(Twice())
    assert [(call.name, index) for call, index in graph.consumers("x:0")] == [
        ("add", 0),
        ("add", 1),
    ]


def test_pytorchs_own_quantized_modules_are_refused() -> None:
    fake = torch.ao.quantization.FakeQuantize()
    with pytest.raises(UnsupportedModelError, match=r"with FakeQuantize at '1', a quantized"):
        quantize_model(nn.Sequential(nn.Linear(2, 2), fake))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"Expected a torch.nn.Module. Received: str"):
        quantize_model("model")  # type: ignore[arg-type]


def test_catalog_knows_classes_functions_and_models_own() -> None:
    catalog = ModuleCatalog(["Mine"])
    assert catalog.class_named("Conv2d") is nn.Conv2d
    assert catalog.class_named("add") == "add"
    assert catalog.class_named("Mine") == "Mine"
    assert catalog.class_named("Conv2D") is None
    assert {"Mine", "Linear", "cat"} <= set(catalog.class_names())
    assert catalog.class_names() == sorted(catalog.class_names())


def test_catalog_says_what_to_do() -> None:
    catalog = ModuleCatalog()
    assert catalog.remedy("Mine") == "write QuantMine with qat_lib.torch.nn.QuantMixin"
    assert "QuantMine with qat_lib.torch.nn.QuantMixin" in catalog.advice("Mine")
