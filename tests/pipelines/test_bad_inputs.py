"""Bad input ends with a message and an exit code.

It takes at most 10 s and 1 GiB, and leaves nothing behind.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fork_server
import numpy as np
import pytest
from bad_cases import Case, cases

HERE = Path(__file__).parent
MIB = 1024
SECONDS = 10.0

# The sample: one in so many of the cases of the commands that take no second.
SAMPLE = 29
QUICK = (
    "diagnose",
    "search",
    "quantize",
    "verify",
    "analyze",
    "bench-engine",
    "evaluate",
    "config",
    "prepare-data",
    "read-dataset",
    "load-weights",
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sound file of every kind."""
    import keras
    from PIL import Image

    import qat_lib
    from qat_lib import engines
    from qatline.components.settings import DataSettings
    from qatline.components.steps.prepare_data import prepare_data_step
    from qatline.components.support.events import NullProgress

    folder = tmp_path_factory.mktemp("good")
    generator = np.random.default_rng(0)
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 3), name="image")
    y = keras.layers.Flatten()(
        keras.layers.ReLU(name="relu")(keras.layers.Conv2D(4, 3, name="conv")(x))
    )
    model = keras.Model(x, keras.layers.Dense(2, name="logits")(y), name="small")
    inputs = generator.normal(size=(12, 8, 8, 3)).astype(np.float32)
    np.save(folder / "x.npy", inputs)
    np.savez(folder / "x.npz", x=inputs, y=np.arange(12) % 2)
    model.save(folder / "model.keras")
    model.save(folder / "other.keras")
    model.save_weights(folder / "model.weights.h5")
    np.savez(
        folder / "weights.npz", **{"conv.weight": np.zeros((4, 3, 3, 3)), "conv.bias": np.zeros(4)}
    )
    plan = qat_lib.plan_quantization(model)
    (folder / "plan.json").write_text(plan.to_json())
    quantized = qat_lib.apply_plan(model, plan)
    qat_lib.calibrate(quantized, inputs, "max")
    quantized.save(folder / "quantized.keras")
    qat_lib.export_onnx(quantized, folder / "model.onnx", plan=plan)
    spec = engines.BuildSpec(backend="onnxruntime", max_batch_size=4)
    engines.build_engine(folder / "model.onnx", spec, output=folder / "model.engine")
    (folder / "spec.yaml").write_text(
        "- name: logits\n  quantize_input: false\n- name: ReLU\n  is_keras_class: true\n"
    )
    (folder / "layers.json").write_text(
        '{"Layers": [{"Name": "conv", "LayerType": "Convolution"}]}\n'
    )
    (folder / "config.yaml").write_text(
        "seed: 3\ntraining: {epochs: 2}\nmodel: {name: resnet_digits}\n"
    )
    pixels = generator.integers(0, 256, (40, 8, 8, 3), np.uint8)
    np.savez(folder / "data.npz", x=pixels, y=np.arange(40) % 2)
    for index, image in enumerate(pixels):
        place = folder / "images" / ("cat", "dog")[index % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{index // 2:03d}.{'jpg' if index == 2 else 'png'}")
    (folder / "dataset").mkdir()
    settings = DataSettings(kind="npz", path=str(folder / "data.npz"))
    prepare_data_step(folder / "dataset", data=settings, seed=0, progress=NullProgress())
    return folder


class ForkServer:
    """A process that forks one child for each command line."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "fork_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=HERE.parents[1],
        )

    def __call__(self, arguments: list[str], folder: Path) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(
            json.dumps({"arguments": arguments, "folder": str(folder)}) + "\n"
        )
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    found = ForkServer()
    yield found
    found.close()


def problems(case: Case, answer: dict[str, Any], left: set[str], base_mib: float) -> list[str]:
    """Return what is wrong with how a command ended."""
    text = answer["stdout"] + answer["stderr"]
    found = []
    if case.refused and answer["code"] == 0:
        found.append("it was not refused")
    if answer["code"] < 0:
        found.append(f"it was ended by signal {-answer['code']}")
    if answer["code"] > 2:
        found.append(f"exit code {answer['code']}")
    if answer["code"] and not answer["stderr"].strip() and not answer["stdout"].strip():
        found.append("no message")
    found += [
        f"{word!r} in the message"
        for word in ("Traceback", "bug in qatline", "\x1b[")
        if word in text
    ]
    if answer["seconds"] > SECONDS:
        found.append(f"{answer['seconds']:.1f} s")
    if answer["mib"] - base_mib > MIB:
        found.append(f"{answer['mib'] - base_mib:.0f} MiB")
    if left and answer["code"]:
        found.append(f"left {sorted(left)}")
    return found


def execute(
    case: Case, good: Path, folder: Path, server: ForkServer
) -> tuple[dict[str, Any], set[str]]:
    """Run one case in its own folder, then remove the folder."""
    before = case.lay_out(good, folder)
    answer = server(case.arguments, folder)
    known = {*before, folder / ".stdout", folder / ".stderr"}
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path not in known}
    shutil.rmtree(folder)
    return answer, left


def run_here(case: Case, good: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Run one case in this process and return its problems."""
    before = case.lay_out(good, folder)
    here = Path.cwd()
    os.chdir(folder)
    try:
        with pytest.raises(SystemExit) as ended:
            fork_server.execute(case.arguments)
    finally:
        os.chdir(here)
    said = capfd.readouterr()
    answer = {
        "code": ended.value.code,
        "stdout": said.out,
        "stderr": said.err,
        "seconds": 0,
        "mib": 0,
    }
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path not in before}
    shutil.rmtree(folder)
    return problems(case, answer, left, 0)


@pytest.mark.matrix
def test_a_sample_of_bad_inputs_is_refused(
    good: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    quick = [
        case
        for case in cases(good)
        if case.refused and case.arguments[0] in QUICK and "bomb" not in case.name
    ]
    failures = []
    for case in quick[::SAMPLE]:
        if wrong := run_here(case, good, tmp_path / "case", capfd):
            failures.append(f"{case.name}: {'; '.join(wrong)}")
    assert not failures, "\n".join(failures)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_bad_input_is_refused_within_limits(good: Path, server: ForkServer, tmp_path: Path) -> None:
    every = list(cases(good))
    assert sum(case.refused for case in every) >= 500
    base = execute(Case(name="version", arguments=["--version"]), good, tmp_path / "case", server)[
        0
    ]
    failures = []
    for case in every:
        answer, left = execute(case, good, tmp_path / "case", server)
        if wrong := problems(case, answer, left, base["mib"]):
            failures.append(f"{case.name}: {'; '.join(wrong)}\n    {answer['stderr'][-300:]}")
    assert not failures, f"{len(failures)} of {len(every)}:\n" + "\n".join(failures)
