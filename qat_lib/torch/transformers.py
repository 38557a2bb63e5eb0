"""PyTorch's attention and transformer modules as separate operations, for tracing.

PyTorch computes each in one function, also where its parts are modules, so that none of their
matrix products could be quantized. The functions here compute the same with modules and parameters
of the same names. They suit batches of sequences, ``(samples, steps, channels)`` or with
``batch_first=False`` ``(steps, samples, channels)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def opened(module: nn.Module) -> Callable[..., Any] | None:
    """Return the function that computes calls of ``module`` by separate operations.

    None for other modules, and for attention with options that are seldom used.
    """
    found = _OPENED.get(type(module))
    if isinstance(module, nn.MultiheadAttention) and (
        not module._qkv_same_embed_dim or module.bias_k is not None or module.add_zero_attn
    ):
        return None
    return found and found.__get__(module)


def is_opened(module: nn.Module) -> bool:
    """Return whether calls of a module may be computed by separate operations."""
    return type(module) in _OPENED


def masked(
    scores: torch.Tensor,
    attn_mask: torch.Tensor | None,
    key_padding_mask: torch.Tensor | None,
) -> torch.Tensor:
    """Return scores ``(samples, heads, steps, keys)`` without excluded keys; one operation.

    Args:
        scores: the scores.
        attn_mask: ``(steps, keys)`` or ``(samples * heads, steps, keys)``; True excludes a key, and
            numbers are added.
        key_padding_mask: ``(samples, keys)``, likewise.
    """
    if attn_mask is not None and attn_mask.ndim == 3:
        attn_mask = attn_mask.unflatten(0, (-1, scores.shape[1]))
    padding = None if key_padding_mask is None else key_padding_mask[:, None, None]
    for mask in (attn_mask, padding):
        if mask is not None:
            is_boolean = mask.dtype == torch.bool
            scores = scores.masked_fill(mask, -math.inf) if is_boolean else scores + mask
    return scores


def _attention(
    self: Any,
    query: Any,
    key: Any,
    value: Any,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Any, Any]:
    del is_causal  # a hint that belongs to the mask
    apart = (0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3)
    together = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)

    def heads(x: Any) -> Any:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).permute(apart)

    weight, bias = self.in_proj_weight, self.in_proj_bias
    if query is key is value:
        joined = nn.functional.linear(query, weight, bias).chunk(3, -1)
        parts = [joined[index] for index in range(3)]
    else:
        weights, biases = weight.chunk(3), None if bias is None else bias.chunk(3)
        parts = [
            nn.functional.linear(x, weights[index], None if biases is None else biases[index])
            for index, x in enumerate((query, key, value))
        ]
    query, key, value = map(heads, parts)
    scores = torch.matmul(query / math.sqrt(self.head_dim), key.transpose(-2, -1))
    if attn_mask is not None or key_padding_mask is not None:
        # Masks are tensors of one or another type, which tracing does not know.
        masks = (scores, attn_mask, key_padding_mask)
        scores = scores.tracer.create_proxy("call_function", masked, masks, {})
    shares = nn.functional.dropout(nn.functional.softmax(scores, -1), self.dropout, self.training)
    outputs = torch.matmul(shares, value).permute(together).flatten(2)
    if not need_weights:
        return self.out_proj(outputs), None
    return self.out_proj(outputs), shares.mean(1) if average_attn_weights else shares


def _encoder_layer(
    self: Any,
    src: Any,
    src_mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool = False,
) -> Any:
    masks = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}

    def attend(x: Any) -> Any:
        found, _ = self.self_attn(x, x, x, need_weights=False, is_causal=is_causal, **masks)
        return self.dropout1(found)

    if self.norm_first:
        x = src + attend(self.norm1(src))
        return x + _feed_forward(self, self.norm2(x), self.dropout2)
    x = self.norm1(src + attend(src))
    return self.norm2(x + _feed_forward(self, x, self.dropout2))


def _feed_forward(layer: Any, x: Any, dropout: Any) -> Any:
    return dropout(layer.linear2(layer.dropout(layer.activation(layer.linear1(x)))))


def _encoder(
    self: Any,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool | None = None,
) -> Any:
    for layer in self.layers:
        src = layer(src, mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))
    return src if self.norm is None else self.norm(src)


def _decoder_layer(
    self: Any,
    tgt: Any,
    memory: Any,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    tgt_is_causal: bool = False,
    memory_is_causal: bool = False,
) -> Any:
    own = {
        "attn_mask": tgt_mask,
        "key_padding_mask": tgt_key_padding_mask,
        "is_causal": tgt_is_causal,
    }
    other = {
        "attn_mask": memory_mask,
        "key_padding_mask": memory_key_padding_mask,
        "is_causal": memory_is_causal,
    }

    def attend(x: Any) -> Any:
        return self.dropout1(self.self_attn(x, x, x, need_weights=False, **own)[0])

    def look(x: Any) -> Any:
        found = self.multihead_attn(x, memory, memory, need_weights=False, **other)
        return self.dropout2(found[0])

    if self.norm_first:
        x = tgt + attend(self.norm1(tgt))
        x = x + look(self.norm2(x))
        return x + _feed_forward(self, self.norm3(x), self.dropout3)
    x = self.norm1(tgt + attend(tgt))
    x = self.norm2(x + look(x))
    return self.norm3(x + _feed_forward(self, x, self.dropout3))


def _decoder(
    self: Any, tgt: Any, memory: Any, *masks: Any, tgt_is_causal: Any = None, **options: Any
) -> Any:
    for layer in self.layers:
        tgt = layer(tgt, memory, *masks, tgt_is_causal=bool(tgt_is_causal), **options)
    return tgt if self.norm is None else self.norm(tgt)


def _transformer(
    self: Any,
    src: Any,
    tgt: Any,
    src_mask: Any = None,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    src_key_padding_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    src_is_causal: Any = None,
    tgt_is_causal: Any = None,
    memory_is_causal: bool = False,
) -> Any:
    memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
    return self.decoder(
        tgt,
        memory,
        tgt_mask,
        memory_mask,
        tgt_key_padding_mask,
        memory_key_padding_mask,
        tgt_is_causal=tgt_is_causal,
        memory_is_causal=memory_is_causal,
    )


_OPENED: dict[type, Any] = {
    nn.MultiheadAttention: _attention,
    nn.TransformerEncoderLayer: _encoder_layer,
    nn.TransformerEncoder: _encoder,
    nn.TransformerDecoderLayer: _decoder_layer,
    nn.TransformerDecoder: _decoder,
    nn.Transformer: _transformer,
}
