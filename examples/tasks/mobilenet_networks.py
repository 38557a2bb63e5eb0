"""A detector and a segmenter on MobileNetV2, with or without ImageNet weights.

Height and width of the images must be multiples of 32. With weights, images are RGB / 255, minus
(0.485, 0.456, 0.406), over (0.229, 0.224, 0.225).
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from qat_lib.models import mobilenetv2_imagenet
from qat_lib.models.weights import load_weights

FEATURES = {
    2: "features_1_conv_2",
    4: "features_3_add",
    8: "features_6_add",
    16: "features_13_add",
    32: "features_17_conv_3",
}
"""Last layer of MobileNetV2 at each stride."""


def backbone(input_shape, weights=None):
    """Return MobileNetV2 from an image to its maps by stride: 2, 4, 8, 16 and 32 pixels.

    Args:
        input_shape: height, width and 3; multiples of 32.
        weights: path of mobilenetv2_imagenet.npz. Default None: random weights.
    """
    if input_shape[0] % 32 or input_shape[1] % 32:
        raise ValueError(f"expected multiples of 32, received an image of {input_shape[:2]}")
    classifier = mobilenetv2_imagenet(input_shape=tuple(input_shape))
    if weights is not None:
        load_weights(classifier, weights)
    maps = {stride: classifier.get_layer(name).output for stride, name in FEATURES.items()}
    return classifier.inputs[0], maps


def detector(input_shape, classes, weights=None, width=64, join="concatenate"):
    """Return an anchor-free detector: a feature pyramid with maps at strides 8, 16 and 32.

    Args:
        input_shape: height, width and 3; multiples of 32.
        classes: number of classes.
        weights: path of mobilenetv2_imagenet.npz. Default None: random weights.
        width: channels of the pyramid and the heads. Default 64.
        join: ``concatenate`` (default) or ``add``: how the pyramid joins two maps.
    """
    inputs, maps = backbone(input_shape, weights)
    x, outputs = None, []
    for stride in (32, 16, 8):
        side = _convolution(maps[stride], width, f"lateral_{stride}", kernel=1)
        if x is not None:
            x = layers.UpSampling2D(2, name=f"up_{stride}")(x)
            side = _joined(x, side, width, f"join_{stride}", join)
        x = _convolution(side, width, f"pyramid_{stride}")
        head = _convolution(x, width, f"head_{stride}_0")
        head = _convolution(head, width, f"head_{stride}_1")
        # Scores start near 0.01: almost all locations have no box.
        start = keras.initializers.Constant(np.repeat([-4.6, 0.0], [classes, 4]))
        output = layers.Conv2D(classes + 4, 1, bias_initializer=start, name=f"boxes_{stride}")
        outputs.append(output(head))
    return keras.Model(inputs, outputs, name="mobilenet_detector")


def segmenter(input_shape, classes, weights=None, width=32):
    """Return a U-Net: MobileNetV2 down to stride 32, and a decoder up to the image's size.

    Args:
        input_shape: height, width and 3; multiples of 32.
        classes: number of classes.
        weights: path of mobilenetv2_imagenet.npz. Default None: random weights.
        width: channels of the decoder at stride 2; coarser maps have up to four times as many.
            Default 32.
    """
    inputs, maps = backbone(input_shape, weights)
    x = maps[32]
    for stride, channels in ((16, 4 * width), (8, 2 * width), (4, 2 * width), (2, width)):
        x = layers.UpSampling2D(2, name=f"up_{stride}")(x)
        x = layers.Concatenate(name=f"skip_{stride}")([x, maps[stride]])
        x = _convolution(x, channels, f"decoder_{stride}_0")
        x = _convolution(x, channels, f"decoder_{stride}_1")
    x = layers.Conv2D(classes, 1, name="logits")(x)
    x = layers.UpSampling2D(2, interpolation="bilinear", name="pixels")(x)
    return keras.Model(inputs, x, name="mobilenet_segmenter")


def _joined(x, side, width, name, join):
    if join == "add":
        return layers.Add(name=name)([x, side])
    x = layers.Concatenate(name=name)([x, side])
    return _convolution(x, width, f"{name}_reduced", kernel=1)


def _convolution(x, channels, name, kernel=3):
    x = layers.Conv2D(channels, kernel, padding="same", use_bias=False, name=name)(x)
    x = layers.BatchNormalization(momentum=0.9, name=f"{name}_norm")(x)
    return layers.ReLU(name=f"{name}_relu")(x)
