"""``quantize_model`` time and copy size against the number of layers.

The networks are growing ResNets, then ResNet-152.

    nice .venv/bin/python benchmarks/quantize_scaling.py [--json
    benchmarks/results/quantize_scaling.json]

Each size is quantized three times in this process (`threads: 1`), the median counts; the figures
are process CPU seconds, which other work on the machine moves less than the clock. Growth is linear
when the milliseconds for each layer stay the same. The sizes are those of all variables, in MB: the
copy has the original's and one range, or one for each channel, for a quantizer.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from pathlib import Path
from typing import Any

import record

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def residual_network(blocks: int) -> Any:
    """Return a network of ``blocks`` residual blocks, as in CIFAR's ResNets.

    A block has two convolutions.
    """
    import keras
    from keras import layers

    x = y = keras.Input((32, 32, 3))
    y = layers.Conv2D(8, 3, padding="same")(x)
    for _ in range(blocks):
        z = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(y)))
        z = layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(z))
        y = layers.ReLU()(layers.Add()([y, z]))
    return keras.Model(x, layers.Dense(10)(layers.GlobalAveragePooling2D()(y)))


def megabytes(model: Any) -> float:
    """Return the size of a model's variables."""
    return round(sum(v.numpy().nbytes for v in model.variables) / 2**20, 2)


def measure(model: Any, repeats: int = 3) -> dict[str, float]:
    """Quantize ``model`` as the pipeline does, ``repeats`` times."""
    from qat_lib import TensorRTQDQCase, apply_plan, plan_quantization

    planning, applying = [], []
    for _ in range(repeats):
        gc.collect()
        start = time.process_time()
        plan = plan_quantization(model, custom_qdq_cases=[TensorRTQDQCase()])
        planned = time.process_time()
        quantized = apply_plan(model, plan)
        planning.append(planned - start)
        applying.append(time.process_time() - planned)
    total = statistics.median(planning) + statistics.median(applying)
    return {
        "layers": len(model.layers),
        "quantizers": len(plan.quantizers),
        "plan_seconds": round(statistics.median(planning), 3),
        "apply_seconds": round(statistics.median(applying), 3),
        "milliseconds_per_layer": round(1000 * total / len(model.layers), 3),
        "original_mb": megabytes(model),
        "copy_mb": megabytes(quantized),
    }


def main() -> None:
    """Measure, print a table, and write the JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    arguments = parser.parse_args()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    import keras

    rows = []
    measure(residual_network(2), repeats=1)  # warms the imports up
    for blocks in (16, 32, 64, 128):
        rows.append({"model": f"{blocks} residual blocks", **measure(residual_network(blocks))})
    rows.append({"model": "ResNet152", **measure(keras.applications.ResNet152(weights=None))})
    for row in rows:
        print("  ".join(f"{key}={value}" for key, value in row.items()))
    if arguments.json:
        record.write(arguments.json, {"threads": 1, "rows": rows})


if __name__ == "__main__":
    main()
