"""Attention and transformer modules as separate operations."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qat_lib
import qat_lib.torch
from qat_lib.torch.tracing import trace_module

STEPS, WIDTH = 6, 8
CAUSAL = nn.Transformer.generate_square_subsequent_mask(STEPS)


class Calls(nn.Module):
    """Module that calls another one behind a linear layer."""

    def __init__(self, inner: nn.Module, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.inner = inner
        self.options = options

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        inputs = (x, x, x) if isinstance(self.inner, nn.MultiheadAttention) else (x,)
        return self.inner(*inputs, **self.options)


class ToAnother(nn.Module):
    def __init__(self, inner: nn.Module, **masks: Any) -> None:
        super().__init__()
        self.inner = inner
        self.masks = masks

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> Any:
        return self.inner(x, memory, **self.masks)


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = layer()

    def forward(self, x: torch.Tensor, padding: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.inner(x, src_key_padding_mask=padding, src_mask=mask)


def layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 16, **{"batch_first": True, **options})


def attention(**options: Any) -> nn.Module:
    return nn.MultiheadAttention(WIDTH, 2, batch_first=True, **options)


def stack(inner: nn.Module, norm: nn.Module | None = None) -> nn.Module:
    return nn.TransformerEncoder(inner, 2, norm=norm, enable_nested_tensor=False)


def decoder(**options: Any) -> nn.Module:
    return nn.TransformerDecoderLayer(WIDTH, 2, 16, batch_first=True, **options)


def sequences(count: int = 3) -> torch.Tensor:
    return torch.randn(count, STEPS, WIDTH, generator=torch.Generator().manual_seed(0))


def assert_close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


ALONE = {
    "layer": lambda: Calls(layer()),
    "steps first": lambda: Calls(layer(batch_first=False)),
    "norm first, gelu": lambda: Calls(layer(norm_first=True, activation="gelu")),
    "stack": lambda: Calls(stack(layer(), nn.LayerNorm(WIDTH))),
    "stack itself": lambda: stack(layer()),
    "mask": lambda: Calls(stack(layer()), mask=CAUSAL, is_causal=True),
    "boolean mask": lambda: Calls(layer(), src_mask=torch.isinf(CAUSAL)),
    "mask for each head": lambda: Calls(layer(), src_mask=CAUSAL.repeat(6, 1, 1)),
    "attention": lambda: Calls(attention(), need_weights=False),
    "weights": lambda: Calls(attention()),
    "weights of each head": lambda: Calls(attention(bias=False), average_attn_weights=False),
}


@pytest.mark.parametrize("name", ALONE)
def test_traced_module_has_outputs_and_linear_layers_of_its_own(name: str) -> None:
    module = ALONE[name]().eval()
    traced = trace_module(module)
    x = sequences()
    assert_close(traced(x), module(x))
    kinds = [type(part) for part in traced.modules()]
    assert nn.MultiheadAttention not in kinds
    plan = qat_lib.plan_quantization(module)
    weights = [entry for entry in plan.quantizers if entry.kind == "weight"]
    inner = [part for part in module.modules() if isinstance(part, nn.MultiheadAttention)]
    # The output projection is a linear layer, the input projection a parameter.
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
    assert len(weights) == len(linear) + len(inner)


@pytest.mark.parametrize(
    ("inner", "masks"),
    [
        (decoder(), {}),
        (decoder(norm_first=True), {"tgt_mask": CAUSAL, "tgt_is_causal": True}),
        (nn.TransformerDecoder(decoder(), 2), {"tgt_mask": CAUSAL}),
        (nn.TransformerDecoder(decoder(), 1, nn.LayerNorm(WIDTH)), {}),
        (nn.Transformer(WIDTH, 2, 1, 1, 16, batch_first=True), {"src_mask": CAUSAL}),
    ],
)
def test_attention_to_another_sequence_has_linear_layers_of_its_own(
    inner: nn.Module, masks: dict[str, Any]
) -> None:
    module = ToAnother(inner, **masks).eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    traced = trace_module(module)
    x, memory = sequences(), sequences()[:, :4] + 1
    assert_close(traced(x, memory), module(x, memory))
    assert nn.MultiheadAttention not in [type(part) for part in traced.modules()]
    names = {name for name, part in traced.named_modules() if isinstance(part, nn.Linear)}
    parts = [name for name in names if ".multihead_attn." in name]
    assert {name.rpartition(".")[2] for name in parts} == {
        *(f"in_proj_weight_{index}" for index in range(3)),
        "out_proj",
    }
    # The module itself is not changed.
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_attention_with_other_queries_and_one_that_is_called_twice() -> None:
    class Positions(nn.Module):
        """Attention as in DETR, and another one with two calls."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = attention()
            self.again = attention(bias=False)

        def forward(self, x: torch.Tensor) -> Any:
            place = x + 1
            y, _ = self.inner(query=place, key=place, value=x, need_weights=False)
            z, _ = self.again(place, place, x)
            return y + self.again(x, x, x, None, False)[0] + z

    module = Positions().eval()
    traced = trace_module(module)
    assert_close(traced(sequences()), module(sequences()))
    called = {node.target for node in traced.graph.nodes if node.op == "call_module"}
    # Shared weights stay parameters.
    assert {"again.out_proj", "inner.out_proj"} < called
    assert {name for name in called if "in_proj" in name} == {
        f"inner.in_proj_weight_{index}" for index in range(3)
    }
    assert isinstance(module.again.in_proj_weight, nn.Parameter)


@pytest.mark.parametrize("additive", [False, True])
def test_masks_may_be_inputs(additive: bool) -> None:
    module = Padded().eval()
    padding = torch.zeros(3, STEPS, dtype=torch.bool)
    padding[0, 4:] = True
    causal = torch.isinf(CAUSAL)
    masks = [torch.zeros(x.shape).masked_fill(x, -torch.inf) for x in (padding, causal)]
    given = masks if additive else [padding, causal]
    traced = trace_module(module)
    assert_close(traced(sequences(), *given), module(sequences(), *given))
    assert nn.MultiheadAttention not in [type(part) for part in traced.modules()]


@pytest.mark.parametrize(
    "attend",
    [
        nn.MultiheadAttention(WIDTH, 2, batch_first=True, add_bias_kv=True),
        nn.MultiheadAttention(WIDTH, 2, batch_first=True, add_zero_attn=True),
        nn.MultiheadAttention(WIDTH, 2, batch_first=True, kdim=WIDTH, vdim=WIDTH - 1),
    ],
)
def test_uncommon_attention_stays_one_operation(attend: nn.MultiheadAttention) -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = attend

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x, x, x[..., : attend.vdim])[0]

    module = Other().eval()
    traced = trace_module(module)
    assert "inner" in [node.target for node in traced.graph.nodes]
    assert_close(traced(sequences()), module(sequences()))


def test_dropout_follows_the_mode() -> None:
    traced = trace_module(Calls(layer(dropout=0.5)).eval())
    x = sequences()
    assert torch.equal(traced(x), traced(x))
    traced.train()
    # All of the dropouts are active, also that of the attention weights.
    used = [node for node in traced.graph.nodes if node.target is nn.functional.dropout]
    assert [node.kwargs["p"] for node in used] == [0.5]
    assert not torch.equal(traced(x), traced(x))


def test_code_that_depends_on_sizes_may_be_around_it() -> None:
    class Sized(Calls):
        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(x)
            return y[:, 1:] if x.shape[1] > 2 else y

    module = Sized(layer()).eval()
    traced = trace_module(module, example=[sequences()])
    assert_close(traced(sequences()), module(sequences()))


@pytest.mark.matrix
def test_masks_made_in_forward_are_exported(tmp_path: Path) -> None:
    class Causal(nn.Module):
        """PyTorch's tests for a causal mask depend on its values."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = stack(layer())

        def forward(self, x: torch.Tensor) -> Any:
            steps = len(x[0])
            mask = nn.Transformer.generate_square_subsequent_mask(steps).to(x.device)
            return self.inner(x * np.sqrt(WIDTH), mask)

    torch.manual_seed(0)
    module = Causal().eval()
    path = tmp_path / "model.onnx"
    qat_lib.torch.export_onnx(module, path, example_input=sequences())
    report = qat_lib.torch.check_parity(module, path, sequences().numpy())
    assert report.passed, report


@pytest.mark.matrix
def test_encoder_becomes_an_engine(tmp_path: Path) -> None:
    x = sequences(16).numpy()
    module = Calls(stack(layer(dropout=0.0), nn.LayerNorm(WIDTH))).eval()
    found = qat_lib.optimize(module, x, tmp_path, seconds=0.1)
    assert (found.int8_layers, found.weighted_layers) == (9, 9)
    assert found.value > 0.9
    with qat_lib.load_engine(found.engine) as engine:
        (answers,) = engine.infer_many(x).values()
    expected = module(torch.from_numpy(x)).detach().numpy()
    assert np.abs(answers - expected).max() < 0.2 * np.abs(expected).max()
