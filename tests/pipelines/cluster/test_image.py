"""The build context of a config's images."""

import sys
from pathlib import Path

import pytest

from qat_lib.errors import ConfigError
from qatline.pipelines.cluster.image import write_image_context
from qatline.pipelines.config.run_config import load_config

GPU = "cluster.steps={build_engine: {accelerator_count: 1}, evaluate: {accelerator_count: 1}}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module, a package that it imports, weights and data."""
    (tmp_path / "my_nets.py").write_text("import my_blocks\nimport numpy\n")
    (tmp_path / "my_blocks").mkdir()
    (tmp_path / "my_blocks" / "__init__.py").write_text("")
    (tmp_path / "my_blocks" / "table.yaml").write_text("a: 1")
    (tmp_path / "weights.npz").write_text("w")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_text("a")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return tmp_path


def test_context_holds_modules_their_imports_and_weights(project: Path) -> None:
    config = load_config(
        overrides=["model={name: 'my_nets:build', weights: weights.npz}"], cwd=project
    )
    context = write_image_context(config, project / "image")
    assert context.modules == ("my_blocks", "my_nets")
    assert context.files == (str(project / "weights.npz"),)
    assert context.targets == ("training",)
    files = sorted(path for path in context.folder.rglob("*") if path.is_file())
    assert [str(path.relative_to(context.folder)) for path in files] == [
        "Dockerfile",
        "files/weights.npz",
        "modules/my_blocks/__init__.py",
        "modules/my_blocks/table.yaml",
        "modules/my_nets.py",
    ]
    text = (context.folder / "Dockerfile").read_text()
    assert "COPY modules /opt/user/modules\nENV PYTHONPATH=/opt/user/modules\n" in text
    assert "COPY files /opt/user/files\nUSER 10001:10001\n" in text
    assert "tensorrt" not in text


def test_data_is_copied_only_if_listed(project: Path) -> None:
    data = f"data={{kind: folder, path: {project}/images, image_size: [8, 8]}}"
    plain = write_image_context(load_config(overrides=[data]), project / "one")
    assert (plain.files, plain.targets) == ((), ())
    listed = f"cluster.images.files=[{project}/images]"
    context = write_image_context(load_config(overrides=[data, listed]), project / "two")
    assert (context.folder / "files" / "images" / "a.png").read_text() == "a"


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ([GPU], "tensorrt-cu12==10.16.1.11 "),
        (["engine.backend=tensorrt"], "tensorrt-cu12==10.16.1.11 "),
        ([GPU, "cluster.images.tensorrt=10.9.0"], "tensorrt-cu12==10.9.0 "),
        (["cluster.images.tensorrt=10.9.0"], "tensorrt-cu12==10.9.0 "),
        (["model.name=resnet20_cifar10", "model.framework=torch"], '"torch>=2.9,<3"'),
        (["cluster.steps.finetune_qat.accelerator_count=1"], '"tensorflow[and-cuda]=='),
    ],
)
def test_packages_are_installed_where_they_are_used(
    tmp_path: Path, overrides: list[str], line: str
) -> None:
    context = write_image_context(load_config(overrides=overrides), tmp_path / "image")
    text = (context.folder / "Dockerfile").read_text()
    training, engine = text[text.index(" AS training") :].split(" AS engine")
    assert (line in engine) is ("tensorrt" in line)
    assert (line in training) is ("tensorrt" not in line)
    assert "USER root\nRUN pip --python /opt/venv/bin/python install" in text


def test_engine_on_gpu_with_openvino_needs_no_tensorrt(tmp_path: Path) -> None:
    config = load_config(overrides=[GPU, "engine.backend=openvino"])
    context = write_image_context(config, tmp_path / "image")
    assert context.targets == ()


def test_installed_packages_are_required_not_copied(tmp_path: Path) -> None:
    config = load_config(overrides=["quantization.cases=['yaml:Loader']"])
    context = write_image_context(config, tmp_path / "image")
    assert context.modules == ()
    assert [text.partition("==")[0].lower() for text in context.installed] == ["pyyaml"]
    assert not (context.folder / "modules").exists()


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="module 'nowhere_to_be_found'"):
        write_image_context(
            load_config(overrides=["model.name=nowhere_to_be_found:x"]), tmp_path / "one"
        )
    with pytest.raises(ConfigError, match=r"cluster\.images\.files: expected a file at .*gone"):
        write_image_context(
            load_config(overrides=["cluster.images.files=[gone]"], cwd=tmp_path), tmp_path / "two"
        )
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(ConfigError, match="new or empty folder"):
        write_image_context(load_config(), tmp_path / "full")
