"""Wrong engines of a trained network are refused, and those that cost accuracy all of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from wrong_graphs import planted, wrong_graphs

import qat_lib
from qat_lib.engines import BuildSpec, build_engine, load_engine, openvino
from qat_lib.engines.check import check_engine
from qat_lib.errors import EngineBuildError

pytest.importorskip("openvino")
pytest.importorskip("sklearn")

SPEC = BuildSpec(backend="openvino", max_batch_size=16)
CAUGHT = 0.92
COSTLY = 0.005
"""Share of the accuracy that no fault may cost unnoticed."""


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images.reshape(-1, 8, 8, 1) / 16).astype(np.float32), labels


@pytest.fixture(scope="module")
def graph(digits: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An INT8 graph of a network that is trained on digits."""
    import keras

    from qat_lib.models.resnet import resnet_digits

    images, labels = digits
    keras.utils.set_random_seed(0)
    model = resnet_digits(width=8)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(4e-3), loss)
    model.fit(images[:1300], labels[:1300], epochs=6, batch_size=64, verbose=0)
    quantized = qat_lib.PtqRecipe(backend="openvino").quantize(model, images[:128])
    path = tmp_path_factory.mktemp("digits") / "m.onnx"
    return Path(qat_lib.export_onnx(quantized, path, target="openvino").path)


class Judged:
    """What build and check say about the engine of a graph, and its accuracy."""

    def __init__(self, path: Path, digits: tuple[Any, Any]) -> None:
        engine, (images, labels) = path.with_suffix(".engine"), (part[1300:] for part in digits)
        try:
            build_engine(path, SPEC, output=engine)
            self.is_refused = False
        except EngineBuildError:
            self.is_refused = True
            build_engine(path, SPEC, output=engine, verify=False)
        check = check_engine(engine, path, requests=8, inputs=images)
        self.is_refused = self.is_refused or not check.passed
        self.message = check.message
        right = 0
        with load_engine(engine) as loaded:
            for start in range(0, len(images), SPEC.max_batch_size):
                part = slice(start, start + SPEC.max_batch_size)
                (logits,) = loaded.infer(images[part]).values()
                right += int((logits.argmax(1) == labels[part]).sum())
        self.accuracy = right / len(images)


@pytest.mark.matrix
def test_faults_are_caught_and_sound_engines_pass(
    graph: Path, digits: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Judged(graph, digits)
    assert not honest.is_refused, honest.message
    assert honest.accuracy > 0.85
    caught: Counter[str] = Counter()
    missed, costly = [], []
    for fault, wrong in wrong_graphs(onnx.load(graph), layers=4):
        monkeypatch.setattr(openvino, "sound_form", planted(wrong))
        found = Judged(graph, digits)
        if found.is_refused:
            caught[fault.partition(",")[0]] += 1
            continue
        missed.append(fault)
        if found.accuracy < honest.accuracy - COSTLY:
            costly.append(fault)
    assert costly == []
    assert caught.total() >= CAUGHT * (caught.total() + len(missed)), missed
    assert set(caught) == {
        "scale of weights x 1.2",
        "channel zeroed",
        "channels swapped",
        "noise of 20 on weights",
        "biases zeroed",
        "ReLU of quantizer removed",
        "zero point + 3",
        "scale of activation x 1.2",
    }
