from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from qat_lib.torch.models import load_weights, resnet20_cifar10

DATA = Path(__file__).parents[5] / "shared" / "data"


def test_resnet20_has_the_published_size() -> None:
    module = resnet20_cifar10()
    assert sum(p.numel() for p in module.parameters()) == 269_722
    assert module.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_resnet20_takes_other_images_and_classes() -> None:
    module = resnet20_cifar10(channels=1, classes=4)
    assert module.eval()(torch.zeros(3, 1, 16, 8)).shape == (3, 4)


@pytest.mark.skipif(not DATA.is_dir(), reason="no trained weights in ../shared/data")
def test_resnet20_reproduces_the_accuracy_of_its_weights() -> None:
    module = resnet20_cifar10()
    load_weights(module, DATA / "resnet20_cifar10.npz")
    with np.load(DATA / "cifar10_jpeg_subset.npz") as data:
        images, labels = data["x_test"][:500], data["y_test"][:500]
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    x = ((images / np.float32(255) - mean) / std).astype(np.float32).transpose(0, 3, 1, 2)
    with torch.no_grad():
        logits = module.eval()(torch.from_numpy(np.ascontiguousarray(x)))
    assert (logits.argmax(1).numpy() == labels).mean() > 0.78
