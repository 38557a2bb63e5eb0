"""A network with all that the passes are about, and its statistics."""

import keras
import numpy as np
from keras import layers


def build_network():
    """Return a network with all structures that the passes rewrite.

    Pads, depthwise, transposed, gates, branches, flatten.
    """
    image = keras.Input((12, 12, 3), name="image")
    x = layers.ZeroPadding2D(1, name="pad")(image)
    x = layers.Conv2D(8, 3, strides=2, use_bias=False, name="stem")(x)
    x = layers.ReLU(name="stem_relu")(layers.BatchNormalization(name="stem_bn")(x))
    skip = layers.MaxPooling2D(2, name="pool")(x)
    x = layers.Conv2D(8, 3, padding="same", name="main")(skip)
    x = layers.BatchNormalization(scale=False, name="main_bn")(x)
    x = layers.ReLU(name="sum_relu")(layers.Add(name="sum")([x, skip]))
    x = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, name="depthwise")(x)
    x = layers.BatchNormalization(center=False, name="depthwise_bn")(x)
    gate = layers.GlobalAveragePooling2D(keepdims=True, name="squeeze")(x)
    gate = layers.Conv2D(16, 1, activation="sigmoid", name="excite")(gate)
    x = layers.Multiply(name="gate")([x, gate])
    x = layers.Conv2DTranspose(4, 2, strides=2, name="up")(x)
    x = layers.Concatenate(name="concat")(
        [x, layers.AveragePooling2D(3, strides=1, padding="same", name="blur")(x)]
    )
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dropout(0.5, name="drop")(x)
    x = layers.BatchNormalization(name="dense_bn")(layers.Dense(16, name="dense")(x))
    return keras.Model(
        image, layers.Dense(5, activation="softmax", name="probs")(x), name="network"
    )


def stir(model, rng):
    """Give BatchNormalization layers statistics of their own, with negative and zero gammas."""
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            n = layer.moving_mean.shape[0]
            layer.moving_mean.assign(rng.normal(0, 0.2, n))
            layer.moving_variance.assign(rng.uniform(0.5, 1.5, n))
            if layer.scale:
                layer.gamma.assign(
                    np.where(
                        np.arange(n) == 1, 0, rng.uniform(0.5, 1.5, n) * rng.choice([1, -1], n)
                    )
                )
            if layer.center:
                layer.beta.assign(rng.normal(0, 0.2, n))
