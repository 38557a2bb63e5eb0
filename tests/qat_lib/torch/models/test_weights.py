from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qat_lib.errors import ConfigError
from qat_lib.torch.models import load_weights


def module() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))


def arrays() -> dict[str, np.ndarray]:
    state = {name: value.numpy() + 1 for name, value in module().state_dict().items()}
    del state["1.num_batches_tracked"]
    return state


def test_load_weights_sets_parameters_and_buffers(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", **arrays(), other_num_batches_tracked=np.int64(7))
    loaded = module()
    load_weights(loaded, tmp_path / "w.npz")
    for name, array in arrays().items():
        if "running" in name or name.startswith("1."):
            assert np.array_equal(loaded.state_dict()[name].numpy(), array)
    assert loaded[1].num_batches_tracked == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"0.bias": None}, "lack '0.bias'"),
        ({"2.weight": np.zeros(1)}, "hold '2.weight' and 0 more that fit no layer of 'Sequential'"),
        ({"0.weight": np.zeros((2, 1, 3, 2), np.float32)}, r"of shape \(2, 1, 3, 3\)"),
        ({"0.bias": np.zeros(2, np.int64)}, "Received: int64"),
        ({"0.bias": np.array([{}, {}], object)}, "allow_pickle=False"),
    ],
)
def test_load_weights_is_strict(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    changed = {name: x for name, x in {**arrays(), **change}.items() if x is not None}
    np.savez(tmp_path / "w.npz", **changed)
    loaded = module()
    before = {name: value.clone() for name, value in loaded.state_dict().items()}
    with pytest.raises(ConfigError, match=message):
        load_weights(loaded, tmp_path / "w.npz")
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("w.pt", r"Expected a weights file \(\.npz\)"),
        ("gone.npz", "There is no weights file"),
        ("broken.npz", "does not fit the model 'Sequential'"),
    ],
)
def test_load_weights_names_the_file_error(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(ConfigError, match=message):
        load_weights(module(), tmp_path / name)
