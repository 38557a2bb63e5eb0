"""Inputs of the networks of ``applications.py``: random images and photographs.

Photographs are used where they are at hand.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

SHARED = Path(
    os.environ.get("QATLINE_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)


def random_images(count: int, size: int, low: float, high: float) -> np.ndarray:
    """Return images with coarse structure of shape (count, size, size, 3).

    Coarse structure lets networks tell them apart.
    """
    import tensorflow as tf

    rng = np.random.default_rng(0)
    coarse = rng.uniform(0, 1, (count, 1, 1, 3)) + rng.uniform(-0.5, 0.5, (count, 5, 5, 3))
    fine = rng.uniform(-0.1, 0.1, (count, size, size, 3))
    pixels = np.clip(tf.image.resize(coarse, (size, size), "bicubic").numpy() + fine, 0, 1)
    return np.asarray(low + (high - low) * pixels, np.float32)


def real_images(count: int, size: int, low: float, high: float) -> np.ndarray | None:
    """Return enlarged photographs of the CIFAR-10 subset, None without its file."""
    import tensorflow as tf

    path = SHARED / "cifar10_jpeg_subset.npz"
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as data:
        pictures = next(data[key] for key in data.files if data[key].ndim == 4)[:count]
    return np.asarray(
        low + (high - low) * tf.image.resize(pictures / 255.0, (size, size)).numpy(), np.float32
    )
