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
