from pathlib import Path

import pytest

from qat_lib.errors import ConfigError
from qatline.pipelines.config.run_config import RunConfig, load_config
from qatline.pipelines.config.yaml_files import read_yaml_mapping

EXAMPLES = Path(__file__).parents[2] / "examples"
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
