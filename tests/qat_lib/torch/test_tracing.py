"""A module's graph: single operations, mode-dependent values, untraceable code."""

from __future__ import annotations

import logging
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch_twins import Residual

import qat_lib.torch
from qat_lib.errors import UnsupportedModelError
from qat_lib.torch import TensorQuantizer
from qat_lib.torch import nn as quant_nn
from qat_lib.torch.tracing import answers_alike, trace_module
from qat_lib.torch.twin_traces import FLAG


def targets(module: nn.Module, **options: Any) -> list[str]:
    """Return what the nodes of a traced module call."""
    nodes = trace_module(module, **options).graph.nodes
    calls = [node for node in nodes if node.op.startswith("call")]
    return [getattr(node.target, "__name__", str(node.target)) for node in calls]


class Dropping(nn.Module):
    """Code that asks for the mode, as functional dropout does."""

    def forward(self, x: Any) -> Any:
        return F.dropout(x, 0.5, self.training)


@pytest.mark.parametrize("training", [False, True])
def test_functions_follow_the_mode(training: bool) -> None:
    traced = trace_module(Dropping().train(training))
    x = torch.ones(100)
    for mode in (True, False, True):
        assert torch.equal(traced.train(mode)(x), x) is not mode


def test_parts_in_another_mode_follow_the_module() -> None:
    model = nn.Sequential(nn.Identity(), Dropping().eval()).train()
    traced = trace_module(model)
    x = torch.ones(100)
    assert not torch.equal(traced.train()(x), x)
    assert torch.equal(traced.eval()(x), x)


class Contrary(nn.Module):
    def forward(self, x: Any) -> Any:
        return F.dropout(x, 0.5, training=not self.training)


def test_functions_follow_the_contrary_of_the_mode() -> None:
    traced = trace_module(Contrary())
    x = torch.ones(100)
    assert torch.equal(traced.train()(x), x)
    assert not torch.equal(traced.eval()(x), x)


class Always(nn.Module):
    def forward(self, x: Any) -> Any:
        return F.dropout(x, 0.5, training=True)


def test_a_mode_that_the_code_sets_stays() -> None:
    traced = trace_module(Always())
    assert FLAG not in dict(traced.named_modules())
    assert not torch.equal(traced.eval()(torch.ones(100)), torch.ones(100))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)
        self.auxiliary = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return (self.head(x), self.auxiliary(x)) if self.training else self.head(x)


@pytest.mark.parametrize(("training", "calls"), [(True, ["head", "auxiliary"]), (False, ["head"])])
def test_other_work_in_training_is_warned_of(
    training: bool, calls: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="qat_lib"):
        assert targets(Branching().train(training)) == calls
    assert "Branching computes differently in training and in inference" in caplog.text


def test_modes_of_parts_stay_as_they_are() -> None:
    module = Residual().train()
    module.stem_bn.eval()
    before = [part.training for part in module.modules()]
    trace_module(module)
    assert [part.training for part in module.modules()] == before


class Fields(OrderedDict[str, Any]):
    """Outputs with names, as those of Hugging Face's models."""


class WithFields(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 3)

    def forward(self, x: Any) -> Any:
        return Fields(logits=self.head(x))


def test_outputs_with_names_become_a_dict() -> None:
    module, x = WithFields().eval(), torch.ones(4, 2)
    traced = trace_module(module, example=(x,))
    assert type(traced(x)) is dict
    assert torch.equal(traced(x)["logits"], module(x)["logits"])
    assert answers_alike(module, traced, {"x": x})


class Nested(WithFields):
    def forward(self, x: Any) -> Any:
        return Fields(logits=x, parts=(super().forward(x),))


def test_outputs_with_names_inside_of_others_become_a_dict() -> None:
    module, x = Nested().eval(), torch.ones(4, 2)
    traced = trace_module(module, example=x)
    assert torch.equal(traced(x)["parts"][0]["logits"], module.head(x))
    assert answers_alike(module, traced, {"x": x})


class Optional(nn.Module):
    def forward(self, x: Any, mask: Any = None, scale: float = 2.0) -> Any:
        x = x * scale
        return x if mask is None else x * mask


class Pair(NamedTuple):
    left: Any
    right: Any


def test_outputs_in_a_namedtuple_keep_its_class() -> None:
    class Doubled(nn.Module):
        def forward(self, x: Any) -> Any:
            return Pair(x, x * 2)

    assert isinstance(trace_module(Doubled())(torch.ones(1)), Pair)


def test_arguments_with_a_default_keep_it() -> None:
    assert targets(Optional()) == ["mul"]
    assert torch.equal(trace_module(Optional())(torch.ones(2)), torch.full((2,), 2.0))


def test_arguments_with_a_default_can_be_given() -> None:
    assert targets(Optional(), arguments=["x", "mask"]) == ["mul", "mul"]
    traced = trace_module(Optional(), ["x", "mask"])
    assert torch.equal(traced(torch.ones(2), torch.zeros(2)), torch.zeros(2))


def test_arguments_behind_one_that_keeps_its_default_can_be_given() -> None:
    x, scale = torch.ones(2), torch.full((2,), 3.0)
    traced = trace_module(Optional(), example={"scale": scale, "x": x})
    assert [node.target for node in traced.graph.find_nodes(op="placeholder")] == ["x", "scale"]
    assert torch.equal(traced(x, scale), scale)


class Inner(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Any) -> Any:
        return self.part(x)


class DropPath(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 0.5 if self.training else x


class Named(nn.Linear):
    pass


class Changed(nn.Linear):
    def forward(self, x: Any) -> Any:
        return F.linear(x, self.weight * 2)


@pytest.mark.parametrize(
    "part",
    [nn.Linear(2, 2), quant_nn.QuantLinear(2, 2), TensorQuantizer(), DropPath(), Named(2, 2)],
)
def test_modules_that_are_one_operation(part: nn.Module) -> None:
    assert targets(Inner(part)) == ["part"]


def test_modules_that_are_traced_into() -> None:
    assert targets(Inner(Inner(nn.Linear(2, 2)))) == ["part.part"]
    assert targets(Inner(Changed(2, 2))) == ["part.weight_computed"]


class Deciding(nn.Module):
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


class Keyed(nn.Module):
    def forward(self, x: Any, *, other: Any) -> Any:
        return x + other


def test_arguments_by_keyword_alone_become_inputs() -> None:
    traced = trace_module(Keyed())
    assert torch.equal(traced(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))


def test_untraceable_code_is_refused_with_advice() -> None:
    with pytest.raises(UnsupportedModelError, match=r"can't trace Deciding: .*quantized_modules"):
        trace_module(Deciding())


def test_modules_that_cannot_run_on_the_example_are_refused_with_its_shape() -> None:
    class Wrong(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cat(list(x.reshape(2, 7).chunk(2)))

    with pytest.raises(UnsupportedModelError, match=r"Wrong can't run on inputs of shape \(2, 3\)"):
        trace_module(Wrong(), example=torch.ones(2, 3))


def test_attributes_that_cannot_be_restored_stay() -> None:
    class Frozen(dict[str, int]):
        def clear(self) -> None:
            raise TypeError("frozen")

    module = nn.Linear(2, 2)
    module.config = Frozen(size=2)
    assert torch.equal(trace_module(module)(torch.ones(1, 2)), module(torch.ones(1, 2)))
    assert module.config == {"size": 2}


def test_numpy_scalars_become_numbers() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * np.sqrt(2.0) + np.float32(0.5)

    module, x = Scaled(), torch.randn(3, 2)
    traced = trace_module(module)
    assert torch.equal(traced(x), module(x))
    assert [type(node.args[1]) for node in traced.graph.nodes if len(node.args) > 1] == [float] * 2


def scores(x: Any, weight: Any, bias: Any) -> Any:
    """Compute a product of rows that are padded to an even number."""
    padded = F.pad(x, (0, 0, 0, x.shape[1] % 2))
    return F.linear(padded, weight, bias)


torch.fx.wrap("scores")


def deciding_scores(x: Any, weight: Any, bias: Any) -> Any:
    """Compute a product whose sign depends on numbers."""
    return F.linear(x if x.sum() > 0 else -x, weight, bias)


torch.fx.wrap("deciding_scores")


class Wrapped(nn.Module):
    """Module with weights in a function that torch.fx keeps whole, as in torchvision's Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 6)

    def forward(self, x: Any) -> Any:
        return scores(x, self.qkv.weight, self.qkv.bias)


def test_untraceable_functions_with_weights_stay_whole() -> None:
    class Uncertain(Wrapped):
        def forward(self, x: Any) -> Any:
            return deciding_scores(x, self.qkv.weight, self.qkv.bias)

    module, x = Uncertain(), torch.randn(2, 3, 4)
    traced = trace_module(module, example=[x])
    assert [n.target for n in traced.graph.nodes if n.op == "call_function"] == [deciding_scores]
    assert torch.equal(traced(-x), module(-x))


def test_functions_with_weights_are_traced_into() -> None:
    module, x = Wrapped(), torch.randn(2, 3, 4)
    whole = trace_module(module)
    assert [n.target for n in whole.graph.nodes if n.op == "call_function"] == [scores]
    traced = trace_module(module, example=[x])
    assert isinstance(traced.get_submodule("qkv"), nn.Linear)
    assert torch.equal(traced(x), module(x))
    # Within this package alone.
    plain = torch.fx.symbolic_trace(module)
    assert [n.target for n in plain.graph.nodes if n.op == "call_function"] == [scores]


@pytest.mark.parametrize(
    ("wrap", "advice"),
    [
        (torch.compile, r"Pass the module inside: model\._orig_mod"),
        (nn.DataParallel, r"Pass the module inside: model\.module"),
        (torch.jit.script, "Pass the module that was given to torch.jit.script"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_wrapped_module_is_refused_with_the_one_inside(wrap: Any, advice: str) -> None:
    with pytest.raises(UnsupportedModelError, match=advice):
        trace_module(wrap(nn.Sequential(nn.Linear(2, 2), nn.ReLU())))


class Resize(nn.Module):
    """Enlarges by a computed size."""

    def forward(self, x: Any) -> Any:
        return F.interpolate(x, size=[int(n * 2) for n in x.shape[-2:]])


def test_untraceable_module_without_weights_is_one_operation() -> None:
    assert targets(Inner(nn.Sequential(nn.Conv2d(2, 2, 1), Resize()))) == ["part.0", "part.1"]


def test_quantized_model_with_a_computed_resize(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), Resize(), nn.Conv2d(4, 2, 3)).eval()
    data = torch.randn(4, 3, 8, 8)
    quantized = qat_lib.torch.quantize_model(model, custom_qdq_cases="auto").eval()
    qat_lib.torch.calibrate(quantized, data)
    error = (quantized(data) - model(data)).abs().max()
    assert 0 < error < 0.1
    qat_lib.torch.export_onnx(quantized, tmp_path / "net.onnx", example_input=data)
    assert qat_lib.torch.check_parity(quantized, tmp_path / "net.onnx", data.numpy()).passed


class Detector(nn.Module):
    """As torchvision's: a list of images in, one dict for each out."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3))
        self.heads = nn.ModuleDict({"boxes": Head(4), "scores": Head(1)})

    def forward(self, images: Any) -> Any:
        features = self.backbone(torch.stack(list(images)))
        rows = zip(self.heads["boxes"](features), self.heads["scores"](features), strict=True)
        return [{"boxes": boxes[scores[:, 0] > 0], "scores": scores} for boxes, scores in rows]


class Head(nn.Module):
    def __init__(self, values: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, values, 1)

    def forward(self, features: Any) -> Any:
        found = self.conv(features)
        n, c, h, w = map(int, found.shape)
        return found.permute(0, 2, 3, 1).reshape(n, h * w, c)


def test_error_on_a_detector_says_how_to_quantize_its_backbone() -> None:
    torch.manual_seed(0)
    model = Detector().eval()
    with pytest.raises(UnsupportedModelError) as caught:
        qat_lib.torch.quantize_model(model)
    advice = "model.backbone = qat_lib.torch.quantize_model(model.backbone)"
    assert advice in str(caught.value)
    images = list(torch.randn(2, 3, 8, 8))
    expected = model(images)
    exec(advice, {"model": model, "qat_lib": qat_lib})
    qat_lib.torch.calibrate(model.backbone.eval(), torch.stack(images))
    found = model(images)
    assert sorted(qat_lib.torch.model_quantizers(model))
    difference = (found[0]["scores"] - expected[0]["scores"]).abs().max()
    assert 0 < difference < 0.1


def test_untraceable_submodule_with_weights_is_refused_with_advice() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), Head(4))
    model[1].conv = nn.Conv2d(4, 4, 1)
    with pytest.raises(UnsupportedModelError, match=r"model\.0 = qat_lib\.torch\.quantize_model"):
        trace_module(model)


class Trained(nn.Module):
    """Requires targets in training, as detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Any, targets: Any = None) -> Any:
        if self.training and targets is None:
            raise ValueError("no targets")
        return self.conv(x)


def test_module_that_is_traceable_in_its_own_mode_is_traced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="qat_lib"):
        assert targets(Trained().eval()) == ["conv"]
    assert "always computes as it does in inference" in caplog.text
    with pytest.raises(UnsupportedModelError, match="no targets"):
        trace_module(Trained())


def test_a_traced_module_is_not_traced_again() -> None:
    traced = trace_module(Residual())
    assert trace_module(traced) is traced
    assert type(traced).__name__ == "Residual"


class TextClassifier(nn.Module):
    """A branch on a value, a large embedding, and a small traceable body."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 8)
        self.body = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(self.table(x))
        return self.head(y if y.sum() > 0 else -y)


def test_error_names_the_part_with_most_quantizable_weights() -> None:
    with pytest.raises(UnsupportedModelError, match=r"`model\.body = "):
        trace_module(TextClassifier())


class Positions(nn.Module):
    """Positions in a buffer, repeated for each sample, as in BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.arange(6.0)[None])
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + self.positions[:, : x.shape[1]].expand(x.shape[0], x.shape[1]))


def test_buffers_take_traced_sizes_with_an_example() -> None:
    module = Positions().eval()
    x = torch.randn(3, 6)
    with pytest.raises(UnsupportedModelError):
        trace_module(module)
    traced = trace_module(module, example=torch.randn(2, 6))
    assert torch.equal(traced(x), module(x))
    module.positions.add_(1)
    assert torch.equal(traced(x), module(x))


class MadeInForward(nn.Module):
    """An activation that forward makes, as in DistilBERT."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(nn.ReLU()(x))


def test_modules_made_in_forward_are_traced() -> None:
    module, x = MadeInForward(), torch.randn(3, 6)
    traced = trace_module(module)
    assert [path for path, _ in traced.named_children()] == ["head"]
    assert torch.equal(traced(x), module(x))
