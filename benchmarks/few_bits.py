"""Agreement of 4-bit weights and 8-bit activations with FP32, without training.

    uv run --group bench python benchmarks/few_bits.py --json benchmarks/results/few_bits.json

Network and images are those of ``ptq_agreement.py``. The model is equalized, quantized with unsigned
activations and calibrated by default; all weights have 4 bits but those of the first and the last
layer, which have 8, as in the literature. It runs in Keras, whose quantizers compute what the
exported graph does. The weights are rounded to nearest with corrected biases, and by ``adaround``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import ptq_agreement as agreement
import record

BATCH = 40


def spec(model: Any) -> Any:
    """Return a spec with 4-bit weights but in the first and last layer."""
    import qat_lib

    plan = qat_lib.plan_quantization(model, custom_qdq_cases="auto")
    layers = [entry.tensor.rpartition("/")[0] for entry in plan.by_kind("weight")]
    return qat_lib.QuantizationSpec().add(layers[1:-1], weight_num_bits=4)


def outputs(model: Any, images: np.ndarray) -> np.ndarray:
    """Return a Keras model's logits."""
    import tensorflow as tf

    call = tf.function(lambda x: model(x, training=False))
    parts = []
    for start in range(0, len(images), BATCH):
        parts.append(call(tf.convert_to_tensor(images[start : start + BATCH])).numpy())
    return np.concatenate(parts)


def main() -> None:
    """Round in both ways, compare, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calibration", type=int, default=200)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    weights = agreement.SHARED / "mobilenetv2_imagenet.npz"
    if not weights.is_file():
        parser.exit(3, f"Skipped: there is no {weights.name} in {agreement.SHARED}.\n")

    import qat_lib
    from qat_lib.models import mobilenetv2_imagenet
    from qat_lib.models.weights import load_weights

    model = mobilenetv2_imagenet()
    load_weights(model, weights)
    calibration = agreement.mixed("x_train", arguments.calibration, 0)
    images = agreement.mixed("x_test", arguments.images, 1)
    reference = outputs(model, images)
    model = qat_lib.equalize(model, calibration)
    rows = {}
    for name, correct in (("nearest", qat_lib.correct_bias), ("adaround", qat_lib.adaround)):
        quantized = qat_lib.quantize_model(
            model, quantization_spec=spec(model), custom_qdq_cases="auto", unsigned=True
        )
        qat_lib.calibrate(quantized, calibration)
        started = time.process_time()
        samples = correct(quantized, calibration).samples
        seconds = time.process_time() - started
        found = agreement.distance(outputs(quantized, images), reference)
        rows[name] = {**found, "cpu_seconds": seconds, "samples": samples}
        print(
            f"W4A8, {name:10s} {found['agreement']:6.2f} %  KL {found['kl']:.4f}  "
            f"{seconds:6.1f} CPU s on {samples} images",
            flush=True,
        )
    if arguments.json:
        sizes = {"calibration": len(calibration), "images": len(images)}
        record.write(arguments.json, {**sizes, "rows": rows})


if __name__ == "__main__":
    main()
