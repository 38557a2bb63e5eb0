"""One call of ``qat_lib.optimize`` for models of many kinds, each with its line of result.

    uv run python benchmarks/one_call.py                         # all models, about 3 minutes on two cores
    uv run python benchmarks/one_call.py --only resnet20 --json one_call.json

With ``--only``, the rows of other models in the JSON file are kept: torchvision, Ultralytics, timm
and Transformers need a build of PyTorch that may crash in one process with TensorFlow.
Weights are random but for resnet20, which is trained on CIFAR-10 and measured on its test images,
and keras_file, which has ImageNet's: of the others the line shows that the call works, what it runs
in INT8, and how closely both engines agree. A model that can't be quantized must end with a
message. Latency is the median of a request of one sample, both engines in turns.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import record
from applications_images import SHARED

from qat_lib import optimize
from qat_lib.errors import QatlineError

PARTS = (("x_train", 0), ("x_test", 1))
RANDOM = np.random.default_rng(0)
Given = dict[str, Any]
"""Arguments of ``optimize``, with ``model`` and ``data``."""


def normal(*shape: int) -> np.ndarray:
    """Return normal random numbers in float32."""
    return RANDOM.standard_normal(shape, dtype=np.float32)


def resnet20() -> Given:
    """Return the trained ResNet-20, and photographs with labels."""
    from qat_lib.models import resnet20_cifar10
    from qat_lib.models.weights import load_weights

    model = resnet20_cifar10()
    load_weights(model, str(SHARED / "resnet20_cifar10.npz"))
    with np.load(SHARED / "cifar10_jpeg_subset.npz") as arrays:
        mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        x = {
            part: ((arrays[f"x_{part}"][:1000] / 255 - mean) / std).astype(np.float32)
            for part in ("train", "test")
        }
        labels = arrays["y_test"][:1000].astype(np.int64)
    return {"model": model, "data": x["train"][:256], "test_data": x["test"], "labels": labels}


def keras_file() -> Given:
    """Return a file of MobileNetV2 with ImageNet weights, and photographs."""
    import ptq_agreement

    import qat_lib

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mobilenetv2.keras"
        ptq_agreement.NETWORKS["mobilenetv2"].build().save(path)
        model = qat_lib.load_model(path)
    images, tests = (ptq_agreement.mixed(part, 200, seed) for part, seed in PARTS)
    return {"model": model, "data": images, "test_data": tests}


def _maps(outputs: int) -> Given:
    """Return a fully convolutional network with maps of one or several sizes."""
    import keras
    from keras import layers

    x = inputs = keras.Input((192, 256, 3))
    found = []
    for channels in (32, 64, 96):
        x = layers.Conv2D(channels, 3, strides=2, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        found.append(layers.Conv2D(7, 1)(x))
    if outputs == 1:
        x = layers.UpSampling2D(2)(x)
        x = layers.Concatenate()([x, layers.Conv2D(32, 1)(found[1])])
        found = [layers.UpSampling2D(4)(layers.Conv2D(11, 1)(x))]
    return {"model": keras.Model(inputs, found[:outputs]), "data": normal(16, 192, 256, 3)}


def detector() -> Given:
    """Return a detector with three maps of scores and boxes."""
    return _maps(3)


def segmenter() -> Given:
    """Return a segmenter with a class for each pixel."""
    return _maps(1)


def regressor() -> Given:
    """Return a regression of a vector."""
    import keras
    from keras import layers

    x = inputs = keras.Input((32,))
    for units in (1024, 1024):
        x = layers.Dense(units, "relu")(x)
    return {"model": keras.Model(inputs, layers.Dense(1)(x)), "data": normal(256, 32)}


def open_sizes() -> Given:
    """Return a segmenter for images of any size."""
    import keras
    from keras import layers

    x = inputs = keras.Input((None, None, 3))
    for channels in (32, 64, 96):
        x = layers.Conv2D(channels, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.UpSampling2D(8)(layers.Conv2D(11, 1)(x))
    return {"model": keras.Model(inputs, x), "data": normal(16, 192, 256, 3)}


def two_inputs() -> Given:
    """Return a network of an image and a vector."""
    import keras
    from keras import layers

    image, vector = keras.Input((96, 96, 3), name="image"), keras.Input((8,), name="vector")
    x = layers.Conv2D(32, 3, 2, activation="relu")(image)
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(64, 3, activation="relu")(x))
    x = layers.Concatenate()([x, layers.Dense(16, "relu")(vector)])
    model = keras.Model([image, vector], layers.Dense(2)(x))
    return {"model": model, "data": {"image": normal(64, 96, 96, 3), "vector": normal(64, 8)}}


def signals() -> Given:
    """Return a network of one-dimensional signals."""
    import keras
    from keras import layers

    x = inputs = keras.Input((2048, 4))
    for channels in (32, 64, 64):
        x = layers.Conv1D(channels, 5, strides=2, padding="same", activation="relu")(x)
    x = layers.Dense(6)(layers.GlobalAveragePooling1D()(x))
    return {"model": keras.Model(inputs, x), "data": normal(32, 2048, 4)}


def lines_of_text() -> Given:
    """Return a reader of lines: convolutions, two bidirectional LSTMs, and a masked GRU."""
    import keras
    from keras import layers

    x = inputs = keras.Input((200, 48, 1))
    for channels in (32, 64):
        x = layers.Conv2D(channels, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Dense(64, activation="relu")(layers.Reshape((50, 12 * 64))(x))
    for units in (128, 64):
        x = layers.Bidirectional(layers.LSTM(units, return_sequences=True))(x)
    x = layers.GRU(64, return_sequences=True)(layers.Masking()(x))
    return {"model": keras.Model(inputs, layers.Dense(40)(x)), "data": normal(32, 200, 48, 1)}


def transposed_unet() -> Given:
    """Return a U-Net with transposed convolutions."""
    import keras
    from keras import layers

    x = inputs = keras.Input((96, 128, 3))
    skipped = []
    for channels in (16, 32, 64):
        x = layers.Conv2D(channels, 3, padding="same", activation="relu")(x)
        skipped.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(128, 3, padding="same", activation="relu")(x)
    for channels, other in zip((64, 32, 16), reversed(skipped), strict=True):
        x = layers.Conv2DTranspose(channels, 2, strides=2)(x)
        x = layers.Concatenate()([x, other])
        x = layers.Conv2D(channels, 3, padding="same", activation="relu")(x)
    return {"model": keras.Model(inputs, layers.Conv2D(11, 1)(x)), "data": normal(16, 96, 128, 3)}


def subclassed_super_resolution() -> Given:
    """Return a subclassed model that makes images of any size four times as large."""
    import keras
    from keras import layers, ops

    class SuperResolution(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first = [layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(4)]
            self.grow = [layers.Conv2D(128, 3, padding="same") for _ in range(2)]
            self.last = layers.Conv2D(3, 3, padding="same")

        def call(self, x: Any) -> Any:
            for layer in self.first:
                x = layer(x)
            for layer in self.grow:
                x = layer(x)
                batch, height, width, channels = ops.shape(x)
                x = ops.reshape(x, (batch, height, width, 2, 2, channels // 4))
                x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
                x = ops.reshape(x, (batch, 2 * height, 2 * width, channels // 4))
            return self.last(x)

    return {"model": SuperResolution(), "data": normal(16, 48, 48, 3)}


def keras_hub_resnet() -> Given:
    """Return a backbone of keras_hub."""
    import keras_hub

    model = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 128],
        stackwise_num_blocks=[1, 1],
        stackwise_num_strides=[1, 2],
        block_type="basic_block",
        image_shape=(64, 64, 3),
    )
    return {"model": model, "data": normal(32, 64, 64, 3)}


def mixed_precision() -> Given:
    """Return a network that computes in float16."""
    import keras
    from keras import layers

    x = inputs = keras.Input((96, 96, 3))
    for channels in (32, 64, 96):
        x = layers.Conv2D(channels, 3, activation="relu", dtype="mixed_float16")(x)
    x = layers.GlobalAveragePooling2D(dtype="mixed_float16")(x)
    x = layers.Dense(10, dtype="float32")(x)
    return {"model": keras.Model(inputs, x), "data": normal(64, 96, 96, 3)}


def torch_module() -> Given:
    """Return a residual PyTorch module, with data in batches."""
    import torch
    from torch_twins import Residual

    torch.manual_seed(0)
    batches = [torch.from_numpy(normal(16, 3, 32, 32)) for _ in range(4)]
    return {"model": Residual().eval(), "data": batches}


def torchvision_ssdlite() -> Given:
    """Return the backbone and heads of torchvision's SSDlite."""
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    return _backbone_and_head(ssdlite320_mobilenet_v3_large, 320)


def torchvision_fcos() -> Given:
    """Return the backbone and heads of torchvision's FCOS."""
    from torchvision.models.detection import fcos_resnet50_fpn

    return _backbone_and_head(fcos_resnet50_fpn, 320)


def _backbone_and_head(build: Callable[..., Any], size: int) -> Given:
    """Return a detector without the resizing of its images and the suppression of its boxes."""
    import torch

    model = build(weights=None, weights_backbone=None)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = model.backbone, model.head

        def forward(self, x: Any) -> Any:
            return self.head(list(self.backbone(x).values()))

    return _settled(Network(), normal(16, 3, size, size))


def _settled(model: Any, images: np.ndarray) -> Given:
    """Return a module with the statistics of the images in its batch normalizations.

    With their initial statistics, the values of a deep random network vanish.
    """
    import torch

    for part in model.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = None  # the mean over all batches
    model.train()
    with torch.no_grad():
        model(torch.from_numpy(images))
    return {"model": model.eval(), "data": images}


def torchvision_lraspp() -> Given:
    """Return torchvision's LR-ASPP, a segmenter."""
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    model = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=11)
    return _settled(model, normal(16, 3, 192, 256))


def torchvision_deeplabv3() -> Given:
    """Return torchvision's DeepLabv3, a segmenter."""
    from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

    model = deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=11)
    return _settled(model, normal(16, 3, 192, 256))


def ultralytics_yolov8n() -> Given:
    """Return the detector YOLOv8n of Ultralytics, with the decoding of its boxes."""
    from ultralytics import YOLO

    return _settled(YOLO("yolov8n.yaml").model, normal(16, 3, 320, 320))


def timm_mobilenetv4() -> Given:
    """Return timm's MobileNetV4, small."""
    import timm

    return _settled(timm.create_model("mobilenetv4_conv_small"), normal(16, 3, 224, 224))


def timm_convnext() -> Given:
    """Return timm's ConvNeXt of the smallest size."""
    import timm

    return _settled(timm.create_model("convnext_atto"), normal(16, 3, 224, 224))


def transformers_vit() -> Given:
    """Return a ViT-Tiny of Hugging Face."""
    import transformers

    sizes = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes))
    return _settled(model, normal(16, 3, 224, 224))


def transformers_segformer() -> Given:
    """Return a SegFormer-B0 of Hugging Face, a segmenter."""
    import transformers

    config = transformers.SegformerConfig(num_labels=11)
    model = transformers.SegformerForSemanticSegmentation(config)
    return _settled(model, normal(16, 3, 192, 256))


def transformers_bert() -> Given:
    """Return a BERT of Hugging Face with four layers, a classifier of texts of 64 tokens."""
    import transformers

    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = transformers.BertConfig(**sizes, intermediate_size=1024)
    model = transformers.BertForSequenceClassification(config)
    return _settled(model, RANDOM.integers(0, config.vocab_size, (32, 64)))


def nothing_to_quantize() -> Given:
    """Return a model without a layer that INT8 would make faster."""
    import keras
    from keras import layers

    inputs = keras.Input((16,))
    return {"model": keras.Model(inputs, layers.Softmax()(inputs)), "data": normal(8, 16)}


MODELS: tuple[Callable[[], Given], ...] = (
    resnet20,
    keras_file,
    detector,
    segmenter,
    open_sizes,
    regressor,
    two_inputs,
    signals,
    lines_of_text,
    transposed_unet,
    subclassed_super_resolution,
    keras_hub_resnet,
    mixed_precision,
    torch_module,
    torchvision_ssdlite,
    torchvision_fcos,
    torchvision_lraspp,
    torchvision_deeplabv3,
    ultralytics_yolov8n,
    timm_mobilenetv4,
    timm_convnext,
    transformers_vit,
    transformers_segformer,
    transformers_bert,
    nothing_to_quantize,
)


def measure(make: Callable[[], Given], seconds: float) -> dict[str, Any]:
    """Return the row of a model."""
    row: dict[str, Any] = {"name": make.__name__}
    try:
        given = make()
    except (ImportError, OSError) as error:
        return {**row, "skipped": str(error)}
    if "labels" not in given:
        given["metric"] = "fidelity"  # the classes of untrained networks are near chance
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = optimize(
                given.pop("model"), given.pop("data"), folder, seconds=seconds, **given
            )
            row |= {"line": str(found), "speedup": found.speedup, "value": found.value}
            row |= {"float_value": found.float_value, "metric": found.metric}
            row |= {"int8_layers": found.int8_layers, "weighted_layers": found.weighted_layers}
        except QatlineError as error:
            row["error"] = f"{type(error).__name__}: {error}"
    return {**row, "seconds": round(time.perf_counter() - began, 1)}


def main() -> None:
    """Run the models and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [make.__name__ for make in MODELS]
    parser.add_argument("--only", action="append", choices=names, help="model (repeatable)")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each engine")
    parser.add_argument("--json", type=Path, help="file of the results")
    arguments = parser.parse_args()
    rows = []
    for make in MODELS:
        if arguments.only and make.__name__ not in arguments.only:
            continue
        row = measure(make, arguments.seconds)
        rows.append(row)
        text = row.get("line") or row.get("error") or f"skipped: {row['skipped']}"
        print(f"{row['name']:20} {row.get('seconds', 0):6.1f} s  {text}", flush=True)
    if arguments.json:
        if arguments.only and arguments.json.exists():
            measured = {row["name"] for row in rows}
            known = json.loads(arguments.json.read_text())["models"]
            rows += [row for row in known if row["name"] not in measured]
            rows.sort(key=lambda row: names.index(row["name"]))
        record.write(arguments.json, {"seconds": arguments.seconds, "models": rows})


if __name__ == "__main__":
    main()
