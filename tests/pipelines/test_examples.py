import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import qat_lib
from qat_lib.errors import ConfigError
from qatline.pipelines.config.run_config import RunConfig, load_config
from qatline.pipelines.config.yaml_files import read_yaml_mapping

EXAMPLES = Path(__file__).parents[2] / "examples"
HEADS = ("boxes_32", "boxes_16", "boxes_8")
NEEDED = {"cifar10_resnet20.yaml": ["data.path=x.npz"], "image_folder.yaml": ["data.path=images"]}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_valid_with_every_profile(path: Path) -> None:
    overrides = NEEDED.get(path.name, [])
    config = load_config(path, overrides=overrides)
    assert config.output == str(EXAMPLES.parent / "runs")
    for profile in read_yaml_mapping(path).get("profiles", {}):
        assert load_config(path, profiles=[profile], overrides=overrides) != config


def test_digits_example_is_the_default() -> None:
    example = load_config(EXAMPLES / "digits.yaml")
    assert example.pipeline_parameters() == RunConfig().pipeline_parameters()
    assert example.tracking == RunConfig().tracking


@pytest.mark.matrix
@pytest.mark.timeout(1800)  # eight processes, one after another
@pytest.mark.parametrize(
    ("name", "layers", "metric", "bound"),
    [
        pytest.param("own_data", 3, "accuracy", 0.8, marks=pytest.mark.slow),  # by chance 0.5
        pytest.param("own_task", 6, "distance", 1.5, marks=pytest.mark.slow),  # 8
        pytest.param("regression", 3, "mae", 0.65, marks=pytest.mark.slow),  # 0.9
        pytest.param("segmentation", 6, "mean_iou", 0.6, marks=pytest.mark.slow),  # 0.2
        pytest.param("signals", 4, "accuracy", 0.9, marks=pytest.mark.slow),  # 0.1
        pytest.param("table", 3, "accuracy", 0.85, marks=pytest.mark.slow),  # 0.4
        pytest.param("two_inputs", 5, "mae", 0.65, marks=pytest.mark.slow),  # 0.9
    ],
)
def test_example_ends_with_a_checked_engine(
    name: str, layers: int, metric: str, bound: float, tmp_path: Path
) -> None:
    command = ["-m", "qatline.pipelines.cli.main", "run", "--config", f"{name}.yaml", "--json"]
    command += ["--set", f"output={tmp_path}", "--set", "engine.benchmark_seconds=0.2"]
    done = subprocess.run(
        [sys.executable, *command], cwd=EXAMPLES / "tasks", capture_output=True, text=True
    )
    result = json.loads(done.stdout)
    assert "gate" in result, done.stderr[-2000:]
    # Small networks on a CPU without VNNI gain nothing from INT8: the gate says so.
    failed = {each["check"] for each in result["gate"]["reasons"] if not each["passed"]}
    assert failed <= {"speedup"}, done.stderr[-2000:]
    engine, reference = result["results"]["qat_engine"], result["results"]["fp32"]
    assert engine["int8_layers"] >= layers
    sign = 1 if engine["metric"].get("higher_is_better", True) else -1
    for row in (engine, reference):
        assert sign * row["quality"][metric] > sign * bound
    assert Path(result["report"]).is_file()


def test_the_data_of_an_example_must_be_given() -> None:
    with pytest.raises(ConfigError, match=r"data.kind=npz needs data.path"):
        load_config(EXAMPLES / "cifar10_resnet20.yaml")


def test_weights_are_found_beside_the_data(tmp_path: Path) -> None:
    (tmp_path / "resnet20_cifar10.npz").touch()
    beside = load_config(
        EXAMPLES / "cifar10_resnet20.yaml", overrides=[f"data.path={tmp_path}/x.npz"]
    )
    assert beside.model.weights == str(tmp_path / "resnet20_cifar10.npz")
    named = load_config(
        EXAMPLES / "cifar10_resnet20.yaml", overrides=["data.path=x.npz", "model.weights=other.npz"]
    )
    assert named.model.weights == str(Path.cwd() / "other.npz")


def test_mobilenet_detector_has_tied_joints_and_float_heads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "tasks"))
    networks = pytest.importorskip("mobilenet_networks")
    model = networks.detector((64, 96, 3), 3)
    shapes = {name: each.shape[1:] for name, each in zip(HEADS, model.outputs, strict=True)}
    assert shapes == {"boxes_32": (2, 3, 7), "boxes_16": (4, 6, 7), "boxes_8": (8, 12, 7)}
    case = qat_lib.TensorRTQDQCase(float_outputs=True)
    plan = qat_lib.plan_quantization(model, custom_qdq_cases=[case])
    weighted = {layer.name for layer in model.layers if "conv" in type(layer).__name__.lower()}
    assert weighted - set(plan.wrapped) == set(HEADS)
    tied = Counter(entry.group for entry in plan.quantizers if entry.group)
    assert sorted(tied.values()) == [3, 3]
    added = networks.detector((64, 96, 3), 3, join="add")
    entries = qat_lib.plan_quantization(added, custom_qdq_cases=[case]).quantizers
    assert {entry.group for entry in entries} == {None}


def test_mobilenet_segmenter_ties_its_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "tasks"))
    networks = pytest.importorskip("mobilenet_networks")
    model = networks.segmenter((64, 32, 3), 5)
    assert model.outputs[0].shape == (None, 64, 32, 5)
    plan = qat_lib.plan_quantization(model, custom_qdq_cases="auto")
    assert {"logits", "features_0_0", "decoder_2_1"} <= set(plan.wrapped)
    assert len({entry.group for entry in plan.quantizers if entry.group}) == 4
    with pytest.raises(ValueError, match=r"multiples of 32, received an image of \(64, 40\)"):
        networks.segmenter((64, 40, 3), 5)
