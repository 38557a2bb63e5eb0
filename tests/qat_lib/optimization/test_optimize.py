"""One call from a model to an engine: files, comparison, escalation, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import onnx
import pytest
from keras import layers
from planted_faults import scale_channel

import qat_lib
from qat_lib.core.plan import QuantizationPlan
from qat_lib.engines import load_engine, read_manifest
from qat_lib.errors import (
    CalibrationError,
    ConfigError,
    EngineBuildError,
    UnsupportedModelError,
)
from qat_lib.optimization import optimize
from qat_lib.optimization.trial import EngineTrial
from qat_lib.ptq import PtqRecipe

IMAGES = np.random.default_rng(0).normal(size=(48, 8, 8, 5)).astype(np.float32)
QUICK: dict[str, Any] = {"seconds": 0.02, "max_batch_size": 16}


def classifier(outlier: float = 1.0) -> Any:
    """Return a classifier; a channel of conv2 is ``outlier`` times as large as the others."""
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((8, 8, 5), name="image")
    x = layers.ReLU()(layers.Conv2D(8, 3, name="conv1")(x))
    x = layers.ReLU()(layers.Conv2D(8, 3, name="conv2")(x))
    x = layers.Conv2D(8, 3, name="conv3")(x)
    x = layers.Dense(5, name="logits")(layers.Flatten()(x))
    model = keras.Model(inputs, x, name="small")
    scale_channel(model, "conv2", "conv3", 5, outlier)
    return model


def labels_of(model: Any) -> Any:
    return np.asarray(model(IMAGES)).argmax(axis=1)


def answers(engine: Path) -> Any:
    with load_engine(engine) as loaded:
        (found,) = loaded.infer_many(IMAGES).values()
    return found


def test_optimize_compares_both_engines(tmp_path: Path) -> None:
    model = classifier()
    labels = labels_of(model)
    labels[:12] = 4 - labels[:12]  # not every answer is right
    phases: list[str] = []
    found = optimize(
        model,
        IMAGES[:32],
        tmp_path / "new" / "out",
        test_data=IMAGES,
        labels=labels,
        classes=["a", "b", "c", "d", "e"],
        on_progress=lambda phase, *_: phases.append(phase),
        **QUICK,
    )
    assert found.metric == "accuracy"
    for engine, value in ((found.float_engine, found.float_value), (found.engine, found.value)):
        assert value == np.mean(answers(engine).argmax(axis=1) == labels)
    assert found.int8_layers == found.weighted_layers == 4
    assert found.samples == 48
    assert [each.method for each in found.attempts] == ["calibration"]
    assert phases == ["float engine", "calibration", "engine", "latency"]
    report = json.loads((tmp_path / "new/out/report.json").read_text())
    assert report["value"] == found.value
    assert report["speedup"] == found.float_ms / found.int8_ms
    plan = QuantizationPlan.from_json((tmp_path / "new/out/plan.json").read_text())
    assert plan.digest() == found.plan.digest()
    page = (tmp_path / "new/out/report.html").read_text()
    assert f"{found.float_value:.2%}".replace("%", "") in page
    with load_engine(found.engine) as engine:
        assert engine.manifest.classes == ("a", "b", "c", "d", "e")
    assert str(found).startswith(f"small: {found.verdict}, 4 of 4 layers in INT8, accuracy ")


@pytest.mark.matrix
def test_optimize_keeps_layers_in_float_where_calibration_loses(tmp_path: Path) -> None:
    model = classifier(outlier=100.0)
    given = {"metric": "fidelity", "recipe": PtqRecipe(bias_correction=False), **QUICK}
    plain = optimize(model, IMAGES, tmp_path / "plain", **given)
    bound = (plain.float_value - plain.value) / 3
    found = optimize(model, IMAGES, tmp_path / "bound", max_drop=bound, **given)
    assert [each.method for each in found.attempts] == ["calibration", "float layers"]
    assert found.attempts[0].drop > bound >= found.attempts[1].drop
    assert found.attempts[1].float_layers
    assert found.float_value - found.value == found.attempts[1].drop
    assert found.int8_layers == 4 - len(found.attempts[1].float_layers)


@pytest.mark.matrix
def test_optimize_trains_where_float_layers_are_not_enough(tmp_path: Path) -> None:
    model = classifier()
    trained: list[Any] = []

    def train(quantized: Any) -> None:
        trained.append(quantized)
        (kernel,) = [each for each in quantized.variables if each.path.endswith("logits/kernel")]
        kernel.assign(np.zeros(kernel.shape))

    found = optimize(model, IMAGES, tmp_path, metric="fidelity", max_drop=0.0, train=train, **QUICK)
    assert [each.method for each in found.attempts] == ["calibration", "training"]
    assert len(trained) == 1
    assert qat_lib.model_quantizers(trained[0])
    assert np.ptp(answers(found.engine), axis=0).max() == 0  # the engine of the trained weights
    assert found.verdict == "keep fp32"
    assert found.reason.startswith("the drop of ")


class Batches:
    """An iterable of batches, such as a ``DataLoader``."""

    def __iter__(self) -> Iterator[Any]:
        return iter([(IMAGES[:16], np.zeros(16)), (IMAGES[16:], np.zeros(32))])


@pytest.mark.parametrize("floats", [(), ("conv2",)])
def test_optimize_tries_half_precision_for_layers_in_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, floats: tuple[str, ...]
) -> None:
    tried: list[str] = []
    fastest = EngineTrial.fastest

    def spy(self: EngineTrial, path: Path, accepts: Any = lambda _: True) -> Any:
        found = fastest(self, path, accepts)
        tried.append(f"{path.name} {read_manifest(path).spec['float_precision']}")
        assert tried[-1].endswith(found.precision)
        return found

    monkeypatch.setattr(EngineTrial, "fastest", spy)
    spec = qat_lib.QuantizationSpec()
    for name in floats:
        spec.add(name, quantize_input=False, quantize_weight=False)
    found = optimize(classifier(), IMAGES, tmp_path, spec=spec, max_drop=1, **QUICK)
    assert [each.split()[0] for each in tried] == ["model.engine"] * len(floats) + ["float.engine"]
    assert found.int8_layers == found.weighted_layers - len(floats)
    assert found.value == found.attempts[-1].value == found.float_value - found.attempts[-1].drop


def test_optimize_takes_a_file(tmp_path: Path) -> None:
    classifier().save(tmp_path / "model.keras")
    found = optimize(str(tmp_path / "model.keras"), IMAGES, tmp_path / "out", **QUICK)
    assert found.int8_layers == 4
    with pytest.raises(UnsupportedModelError, match=r"no\.keras"):
        optimize(tmp_path / "no.keras", IMAGES, tmp_path / "none", **QUICK)
    assert not (tmp_path / "none").exists()


@pytest.mark.matrix
def test_optimize_takes_batches_and_several_inputs(tmp_path: Path) -> None:
    found = optimize(classifier(), Batches(), tmp_path / "batches", **QUICK)
    assert (found.metric, found.samples) == ("agreement", 48)
    first, second = keras.Input((8, 8, 5), name="b"), keras.Input((10,), name="a")
    x = layers.Concatenate()([layers.Flatten()(layers.Conv2D(4, 3)(first)), second])
    model = keras.Model([first, second], layers.Dense(1)(x))
    data = {"a": IMAGES[:, 0, :2].reshape(48, 10), "b": IMAGES}
    for form in (data, [data["b"], data["a"]]):
        found = optimize(model, form, tmp_path / "two", **QUICK)
        assert found.metric == "fidelity"
        assert found.value > 0.9


@pytest.mark.matrix
def test_optimize_takes_open_sizes_from_the_data(tmp_path: Path) -> None:
    images, steps = keras.Input((None, None, 5), name="image"), keras.Input((None, 5), name="steps")
    pooled = [
        layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3)(images)),
        layers.GlobalAveragePooling1D()(layers.Conv1D(4, 3)(steps)),
    ]
    model = keras.Model([images, steps], layers.Dense(2)(layers.Concatenate()(pooled)))
    batches = [
        {"image": IMAGES[:16], "steps": IMAGES[:16, 0]},
        {"image": IMAGES[16:24, :6], "steps": IMAGES[16:24, 0, :5]},
    ]
    found = optimize(model, batches, tmp_path / "two", **QUICK)
    assert (found.samples, found.weighted_layers) == (24, 3)
    assert found.int8_layers >= 2
    with load_engine(found.engine) as loaded:
        assert [info.shape for info in loaded.inputs] == [(None, None, 8, 5), (None, None, 5)]
        shapes = loaded.manifest.spec["shapes"]
        assert shapes["image"] == "1x6x8x5,16x8x8x5,16x8x8x5"
    maps = keras.Model(images, layers.Conv2D(3, 3, name="maps")(images))
    optimize(maps, IMAGES, tmp_path / "one", **QUICK)
    with load_engine(tmp_path / "one" / "model.engine") as loaded:
        assert [info.shape for info in loaded.inputs] == [(None, 8, 8, 5)]
    sizes = [IMAGES, IMAGES[:, :6]]
    with pytest.raises(ConfigError, match=r"'maps' of \(4, 6, 3\), \(6, 6, 3\): give test data"):
        optimize(maps, sizes, tmp_path / "maps", **QUICK)


@pytest.mark.matrix
def test_optimize_takes_modules(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch_twins import Residual

    torch.manual_seed(0)
    data = torch.from_numpy(np.tile(IMAGES[..., :3], (1, 2, 2, 1)).transpose(0, 3, 1, 2).copy())
    found = optimize(Residual().eval(), data, tmp_path, **QUICK)
    assert found.int8_layers == len(found.plan.by_kind("weight")) > 0
    assert found.value > 0.9


def test_optimize_takes_modules_with_newer_operators(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Folding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(5, 16, 2, stride=2)

        def forward(self, x: Any) -> Any:
            return torch.nn.functional.fold(self.conv(x).flatten(2), (8, 8), 2, stride=2)

    images = IMAGES.transpose(0, 3, 1, 2)
    found = optimize(Folding(), images, tmp_path, **QUICK)
    assert found.int8_layers == found.weighted_layers == 1
    assert onnx.load(found.onnx).opset_import[0].version == 18


class Answer(NamedTuple):
    mean: Any
    scale: Any


def test_optimize_takes_modules_in_bfloat16_with_named_outputs(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(5, 4, 3, bias=False)
            self.norm = torch.nn.BatchNorm2d(4)

        def forward(self, x: Any) -> Any:
            y = self.norm(self.conv(x)).mean((2, 3))
            return Answer(mean=y, scale=y.exp())

    torch.manual_seed(0)
    images = torch.from_numpy(IMAGES.transpose(0, 3, 1, 2).copy()).bfloat16()
    found = optimize(Named().bfloat16().eval(), images, tmp_path, **QUICK)
    assert (found.int8_layers, found.metric) == (1, "fidelity")
    assert found.value > 0.9
    with load_engine(found.engine) as engine:
        assert len(engine.outputs) == 2


def test_optimize_takes_arguments_with_a_default_by_name(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(20, 8)
            self.head = torch.nn.Linear(8, 3)

        def forward(self, tokens: Any = None, embedded: Any = None, mask: Any = None) -> Any:
            x = self.embed(tokens) if embedded is None else embedded
            return self.head((x * mask[..., None]).sum(1))

    torch.manual_seed(0)
    random = np.random.default_rng(0)
    tokens = random.integers(0, 20, (32, 6))
    mask = (np.arange(6) < random.integers(1, 7, (32, 1))).astype(np.float32)
    model = Masked().eval()
    found = optimize(model, {"mask": mask, "tokens": tokens}, tmp_path, **QUICK)
    assert (found.int8_layers, found.weighted_layers) == (1, 1)
    with load_engine(found.engine) as engine:
        assert [each.name for each in engine.inputs] == ["tokens", "mask"]
        (answer,) = engine.infer({"tokens": tokens[:4], "mask": mask[:4]}).values()
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens), mask=torch.from_numpy(mask))[:4].numpy()
    np.testing.assert_allclose(answer, expected, atol=0.05 * np.ptp(expected))
    with pytest.raises(CalibrationError, match=r"tokens, embedded, mask\. Received: masks"):
        optimize(model, {"tokens": tokens, "masks": mask}, tmp_path, **QUICK)


def test_optimize_refuses_one_number_for_all_samples(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(5, 3)

        def forward(self, x: Any, labels: Any = None) -> Any:
            logits = self.head(x)
            if labels is None:
                return logits
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    data = {"x": IMAGES[:, 0, 0], "labels": np.zeros(len(IMAGES), np.int64)}
    with pytest.raises(ConfigError, match=r"'loss', one number for all\. Leave .* labels"):
        optimize(WithLoss().eval(), data, tmp_path, **QUICK)


@pytest.mark.matrix
def test_optimize_takes_the_backend_that_runs_the_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Spectrum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(33, 3)
            self.register_buffer("window", torch.hann_window(64))

        def forward(self, x: Any) -> Any:
            parts = torch.stft(x, 64, 32, window=self.window, return_complex=True)
            return self.head(torch.log1p(parts.abs()).mean(-1))

    signals = np.random.default_rng(0).normal(size=(16, 512)).astype(np.float32)
    found = optimize(Spectrum(), signals, tmp_path, **QUICK)
    assert (found.backend, found.weighted_layers) == ("onnxruntime", 1)
    assert any("ONNX Runtime built the engine instead" in text for text in found.warnings)
    with pytest.raises(EngineBuildError, match="can't compile"):
        optimize(Spectrum(), signals, tmp_path, recipe=PtqRecipe(backend="openvino"), **QUICK)


def test_optimize_refuses_modules_that_cannot_run(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Needing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(7, 2)

        def forward(self, x: Any, more: Any = None) -> Any:
            return self.head(x if more is None else torch.cat([x, more], 1))

    vectors = IMAGES[:, 0, 0]
    with pytest.raises(
        UnsupportedModelError, match=r"can't run on inputs of shape \(2, 5\): .*7x2"
    ):
        optimize(Needing(), [vectors, vectors[:, :2]], tmp_path, **QUICK)
    with pytest.raises(CalibrationError, match=r"one number of .* \(48, 5\) and \(48, 8, 8, 5\)"):
        optimize(torch.nn.Linear(5, 2), [vectors, IMAGES], tmp_path, **QUICK)


def test_optimize_refuses(tmp_path: Path) -> None:
    model = classifier()
    with pytest.raises(ConfigError, match="max_drop from 0 to 1"):
        optimize(model, IMAGES, tmp_path, max_drop=1.5)
    with pytest.raises(ConfigError, match=r"a label for each sample .*\(48\)"):
        optimize(model, IMAGES, tmp_path, labels=[0], **QUICK)
    with pytest.raises(ConfigError, match="can be read several times"):
        optimize(model, iter([IMAGES]), tmp_path)
    with pytest.raises(ConfigError, match="at least one sample of test data"):
        optimize(model, IMAGES, tmp_path, test_data=IMAGES[:0])
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="Expected a folder to write to"):
        optimize(model, IMAGES, tmp_path / "file")
    x = keras.Input((4,))
    plain = keras.Model(x, layers.Softmax()(x), name="plain")
    with pytest.raises(UnsupportedModelError, match="plain has none"):
        optimize(plain, IMAGES[:, 0, 0, :4], tmp_path / "plain", **QUICK)
    assert list((tmp_path / "plain").iterdir()) == []
    outputs = keras.Input((8, 8, 5))
    mask = keras.Model(outputs, layers.Conv2D(2, 3)(outputs))
    with pytest.raises(ConfigError, match="a metric of your own"):
        optimize(mask, IMAGES, tmp_path, labels=np.zeros(48), **QUICK)
    assert not (tmp_path / "report.json").exists()
