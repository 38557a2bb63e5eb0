"""keras_hub backbones for ``applications.py``: custom layers with weighted layers inside.

They have the depth and width of their smallest published presets or less, random weights and a head
of Dense.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from applications_case import Case

CLASSES = 1000
VOCABULARY = 200


def _with_head(backbone: Any, inputs: Any, features: Any) -> Any:
    import keras

    if len(features.shape) > 2:
        name = f"GlobalAveragePooling{len(features.shape) - 2}D"
        features = getattr(keras.layers, name)(name="avg_pool")(features)
    head = keras.layers.Dense(CLASSES, activation="softmax", name="predictions")
    return keras.Model(inputs, head(features), name=backbone.name)


def _resnet(shape: tuple[int, int, int]) -> Any:
    import keras_hub

    backbone = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 128, 256, 512],
        stackwise_num_blocks=[2, 2, 2, 2],
        stackwise_num_strides=[1, 2, 2, 2],
        block_type="basic_block",
        image_shape=shape,
    )
    return _with_head(backbone, backbone.input, backbone.output)


def _densenet(shape: tuple[int, int, int]) -> Any:
    import keras_hub

    backbone = keras_hub.models.DenseNetBackbone(
        stackwise_num_repeats=[3, 6, 12, 8], image_shape=shape
    )
    return _with_head(backbone, backbone.input, backbone.output)


def _mobilenet(shape: tuple[int, int, int]) -> Any:
    import keras_hub

    backbone = keras_hub.models.MobileNetBackbone(
        stackwise_expansion=[[40, 56], [64, 144, 144], [72, 72], [144, 288, 288]],
        stackwise_num_blocks=[2, 3, 2, 3],
        stackwise_num_filters=[[16, 16], [24, 24, 24], [24, 24], [48, 48, 48]],
        stackwise_kernel_size=[[3, 3], [5, 5, 5], [5, 5], [5, 5, 5]],
        stackwise_num_strides=[[2, 1], [2, 1, 1], [1, 1], [2, 1, 1]],
        stackwise_se_ratio=[[None, None], [0.25, 0.25, 0.25], [0.3, 0.3], [0.3, 0.25, 0.25]],
        stackwise_activation=[
            ["relu", "relu"],
            ["hard_swish"] * 3,
            ["hard_swish"] * 2,
            ["hard_swish"] * 3,
        ],
        stackwise_padding=[[1, 1], [2, 2, 2], [2, 2], [2, 2, 2]],
        depthwise_filters=8,
        depthwise_stride=2,
        depthwise_residual=False,
        last_layer_filter=96,
        output_num_filters=288,
        input_activation="hard_swish",
        output_activation="hard_swish",
        input_num_filters=16,
        image_shape=shape,
    )
    return _with_head(backbone, backbone.input, backbone.output)


def _vit(shape: tuple[int, int, int]) -> Any:
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        image_shape=shape, patch_size=16, num_layers=4, num_heads=3, hidden_dim=192, mlp_dim=768
    )
    return _with_head(backbone, backbone.input, backbone.output)


def _bert(shape: tuple[int, ...]) -> Any:
    """A Bert of token ids alone, without mask, with one segment."""
    import keras
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=VOCABULARY,
        num_layers=2,
        num_heads=2,
        hidden_dim=128,
        intermediate_dim=512,
        max_sequence_length=shape[0],
    )
    tokens = keras.Input((shape[0],), dtype="int32", name="tokens")
    features = backbone(
        {
            "token_ids": tokens,
            "segment_ids": keras.ops.zeros_like(tokens),
            "padding_mask": keras.ops.ones_like(tokens),
        }
    )
    return _with_head(backbone, tokens, features["pooled_output"])


HUB: dict[str, Callable[..., Any]] = {
    "keras_hub ResNet18": _resnet,
    "keras_hub DenseNet": _densenet,
    "keras_hub MobileNet": _mobilenet,
    "keras_hub ViT": _vit,
    "keras_hub Bert": _bert,
}


class TextCase(Case):
    """A network of token ids, one per pixel of an image side."""

    def build(self) -> dict[str, Any]:
        """Build the network and draw random tokens."""
        import keras

        keras.utils.set_random_seed(0)
        self.model = self.make((self.size,))
        self.images = (
            np.random.default_rng(0)
            .integers(0, VOCABULARY, (self.samples, self.size))
            .astype(np.int32)
        )
        self.photographs = None
        return {
            "layers": len(self.model.layers),
            "parameters": self.model.count_params(),
            "pixels": self.size,
        }


def case_of(name: str) -> type[Case]:
    """Return the kind of case that a network is."""
    return TextCase if name.endswith("Bert") else Case
