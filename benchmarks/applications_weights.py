"""Untrained weights for the networks of ``applications.py`` that distinguish images.

Random weights as Keras makes them give nearly the same output for every image, so that equal labels
would say nothing. So normalizations get random parameters (some scales negative) and the statistics
of real activations, and the last layer is fitted by ridge regression to give each image its own
class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from applications_figures import outputs


def randomize(model: Any, images: np.ndarray) -> None:
    """Give a model weights with which its outputs depend on the image.

    Statistics of fewer than 16 or so images make a network that magnifies the rounding of floats a
    thousandfold where its last maps are a pixel or two: some channels hardly vary, and are divided
    by that.
    """
    import keras

    rng = np.random.default_rng(1)
    norms = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
    ]
    for layer in norms:
        # In trained networks a residual branch adds little to what passes it by; without that,
        # depth means chaos.
        share = 0.2 if _ends_branch(layer) else 1.0
        if layer.scale:
            sign = np.where(rng.uniform(size=layer.gamma.shape) < 0.05, -1, 1)
            layer.gamma.assign(share * rng.uniform(0.3, 0.9, layer.gamma.shape) * sign)
        if layer.center:
            layer.beta.assign(share * rng.normal(0, 0.5, layer.beta.shape))
    for layer in model._flatten_layers():
        if type(layer).__name__ == "LayerScale":
            layer.gamma.assign(rng.uniform(0.1, 0.5, layer.gamma.shape))
    momenta = [layer.momentum for layer in norms]
    for layer in norms:
        layer.momentum = 0.0
    if norms:
        model(images, training=True)
    for layer, momentum in zip(norms, momenta, strict=True):
        layer.momentum = momentum


def _ends_branch(layer: Any) -> bool:
    """Whether what a layer gives goes to an Add, and there alone."""
    import keras

    while len(layer._outbound_nodes) == 1:
        layer = layer._outbound_nodes[0].operation
        if not isinstance(layer, keras.layers.Dropout | keras.layers.Activation):
            return isinstance(layer, keras.layers.Add)
    return False


def head_of(model: Any) -> Any:
    """Return the layer that gives the logits."""
    return [layer for layer in model.layers if hasattr(layer, "kernel") and layer.bias is not None][
        -1
    ]


def features(model: Any, tensor: Any, images: np.ndarray) -> np.ndarray:
    """Return a model's values at ``tensor``, the input of its head.

    They are one row of float64 for each image.
    """
    import keras

    from qat_lib.keras.apply.recursion import deep_graphs

    with deep_graphs():
        body = keras.Model(model.input, tensor)
    return outputs(body, images).reshape(len(images), -1).astype(np.float64)


def fit_head(heads: Sequence[Any], found: np.ndarray, *, logit: float) -> None:
    """Let all ``heads`` give image number i the class i.

    Args:
        heads: layers of the same shape; they get the same weights.
        found: features of the images, one row each.
        logit: about how far an image's own class stands out. 4 leaves probabilities between 0 and
            1, in which differences show; 30 leaves one label for each image, whatever becomes of
            the features.
    """
    rng = np.random.default_rng(2)
    mean = found.mean(axis=0)
    centred = found - mean
    gram = centred @ centred.T
    wanted = np.eye(len(found)) * logit
    kernel = rng.normal(0, 1, (found.shape[1], heads[0].kernel.shape[-1]))
    kernel *= 2 / (centred @ kernel).std()
    penalty = 0.1 * np.trace(gram) / len(found) * np.eye(len(found))
    kernel[:, : len(found)] = centred.T @ np.linalg.solve(gram + penalty, wanted)
    bias = -mean @ kernel
    bias[len(found) :] -= 8
    for layer in heads:
        layer.kernel.assign(kernel.reshape(layer.kernel.shape))
        layer.bias.assign(bias)
