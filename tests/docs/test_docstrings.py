"""Every example in a docstring runs and gives what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("qat_lib", "components", "pipelines")


def modules_with_examples() -> list[str]:
    """Return the dotted names of modules with an example."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    examples = [file for file in files if ">>> " in file.read_text(encoding="utf-8")]
    return [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in examples]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the examples open."""
    import keras

    import qat_lib

    folder = tmp_path_factory.mktemp("examples")
    images = keras.Input((8, 8, 3), name="images")
    features = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3, name="conv")(images))
    model = keras.Model(images, keras.layers.Dense(2, name="logits")(features))
    quantized = qat_lib.quantize_model(model)
    data = np.random.default_rng(0).normal(size=(16, 8, 8, 3)).astype("float32")
    qat_lib.calibrate(quantized, data)
    quantized.save(folder / "model.keras")
    qat_lib.export_onnx(quantized, folder / "model.onnx")
    return folder


@pytest.mark.matrix
@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_of_a_module_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith("qat_lib.torch"):
        pytest.importorskip("torch", reason="needs the extra qatline[torch]")
    monkeypatch.chdir(folder)
    module = importlib.import_module(name)
    found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert found.attempted
    assert not found.failed
