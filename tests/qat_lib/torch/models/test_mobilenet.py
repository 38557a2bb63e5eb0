from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qat_lib.torch.models import load_weights, mobilenet_v2

DATA = Path(__file__).parents[5] / "shared" / "data"


def test_mobilenet_has_the_published_size() -> None:
    module = mobilenet_v2()
    assert sum(p.numel() for p in module.parameters()) == 3_504_872
    assert module.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


def test_mobilenet_adds_where_shapes_agree() -> None:
    module = mobilenet_v2(classes=3)
    adding = [i for i, part in enumerate(module.features) if getattr(part, "adds_input", False)]
    assert adding == [3, 5, 6, 8, 9, 10, 12, 13, 15, 16]


@pytest.mark.skipif(not DATA.is_dir(), reason="no trained weights in ../shared/data")
def test_mobilenet_takes_torchvisions_weights() -> None:
    module = mobilenet_v2()
    load_weights(module, DATA / "mobilenetv2_imagenet.npz")
    assert 0.01 < module.features[18][1].running_var.mean() < 0.03  # 1 before
