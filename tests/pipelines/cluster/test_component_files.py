"""The steps as components in files."""

from pathlib import Path

import pytest
import yaml
from kfp import components, dsl

from qat_lib.errors import ConfigError
from qatline.components.step_table import STEPS
from qatline.pipelines.cluster.component_files import component_ir, write_components
from qatline.pipelines.cluster.ir_check import check_ir
from qatline.pipelines.config.cluster_settings import ImageSettings


def test_components_load_and_compose(tmp_path: Path) -> None:
    from kfp import compiler

    files = write_components(tmp_path / "new", ImageSettings.model_validate({}))
    assert [file.stem for file in files] == [step.name for step in STEPS]
    loaded = {file.stem: components.load_component_from_file(str(file)) for file in files}

    @dsl.pipeline(name="mine")
    def mine(seed: int = 3) -> None:
        data = loaded["prepare_data"](data={"kind": "digits"}, seed=seed)
        loaded["train_baseline"](dataset=data.outputs["dataset"], seed=seed)

    target = tmp_path / "mine.yaml"
    compiler.Compiler().compile(mine, str(target))
    documents = list(yaml.safe_load_all(target.read_text()))
    check_ir(documents)
    assert set(documents[0]["root"]["dag"]["tasks"]) == {
        "prepare-data-component",
        "train-baseline-component",
    }


def test_component_text_is_the_same_each_time() -> None:
    assert component_ir(STEPS[0]) == component_ir(STEPS[0])


def test_images_of_the_config_are_written(tmp_path: Path) -> None:
    images = ImageSettings.model_validate({"engine": "r.example/e:1"})
    write_components(tmp_path, images)
    for step in STEPS:
        text = (tmp_path / f"{step.name}.yaml").read_text()
        assert ("image: r.example/e:1" in text) is (step.image == "engine")


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"Could not write .*file/prepare_data\.yaml"):
        write_components(tmp_path / "file", ImageSettings.model_validate({}))
