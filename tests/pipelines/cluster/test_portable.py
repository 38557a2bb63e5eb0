"""What a config names and a pod may not have."""

import re
from pathlib import Path
from typing import Any

import pytest

from qat_lib.errors import ConfigError, SpecError
from qatline.pipelines.cluster.portable import portable
from qatline.pipelines.config.run_config import RunConfig, load_config

IMAGES = "cluster.images.train=registry.example/mine:1"


@pytest.fixture(autouse=True)
def _no_image_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QATLINE_IMAGE", raising=False)


def config(*overrides: str) -> RunConfig:
    return load_config(overrides=overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["data={kind: npz, path: 's3://bucket/data.npz'}"],
        ["data={kind: folder, path: 's3://bucket/images', storage: shards}"],
        ["model={name: 's3://bucket/net.keras', weights: 's3://bucket/net.weights.h5'}"],
        ["data={kind: keras, name: mnist}"],
        ["model={name: 'keras.applications:MobileNetV2', weights: imagenet}"],
        ["model.name=keras.applications.mobilenet:MobileNet"],
        ["model.name=qat_lib.models:resnet"],
        ["quantization.cases=[TensorRTQDQCase]"],
    ],
)
def test_what_every_pod_has_stays(overrides: list[str]) -> None:
    assert portable(config(*overrides)) == config(*overrides)


@pytest.mark.parametrize(
    ("overrides", "problems"),
    [
        (
            ["data={kind: npz, path: /home/me/data.npz}"],
            ["data.path: /home/me/data.npz: upload it and set s3://bucket/key.npz; or mount"],
        ),
        (
            ["data={kind: folder, path: /home/me/images}"],
            ["data.path: /home/me/images: mount a volume that holds it (cluster.volumes)"],
        ),
        (
            ["data={kind: folder, path: /home/me/images}", "model.weights=/home/me/net.npz"],
            [
                "qatline cluster image; or upload it and set s3://bucket/folder",
                "qatline cluster image; or upload it and set s3://bucket/key",
            ],
        ),
        (
            ["model={name: /home/me/net.keras, weights: /home/me/net.npz}"],
            ["model.name: /home/me/net.keras: mount", "model.weights: /home/me/net.npz: mount"],
        ),
        (
            ["model.name=nets.small:build", "quantization.cases=['my_cases:MyCase']"],
            [
                "model.name: the module nets: name it in cluster.images.modules",
                "quantization.cases: the module my_cases: name it in cluster.images.modules",
            ],
        ),
        (
            ["cluster.images.modules=[nets]", "model.name=nets:build"],
            ["cluster.images: modules and files need an image of yours that holds them"],
        ),
    ],
)
def test_what_this_machine_alone_has_is_refused(overrides: list[str], problems: list[str]) -> None:
    with pytest.raises(
        ConfigError, match="files, modules and addresses that the pods have"
    ) as caught:
        portable(config(*overrides))
    for problem in problems:
        assert problem in str(caught.value)
    assert str(caught.value).count("\n  - ") == len(problems)


@pytest.mark.parametrize("host", ["localhost", "localhost:5000", "127.0.0.1:5000/x", "[::1]:1"])
def test_addresses_of_this_machine_are_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=f"tracking\\.uri: http://{re.escape(host)}: in a pod"):
        portable(config(f"tracking.uri='http://{host}'"))
    with pytest.raises(ConfigError, match=r"cluster\.webhook: http://"):
        portable(config(f"cluster.webhook='http://{host}'"))
    portable(config(f"tracking.uri='http://mlflow.{host.replace('[::1]', 'example')}'"))


@pytest.mark.parametrize("uri", ["sqlite:////a/mlflow.db", "postgresql://db.example/mlflow"])
def test_store_without_a_server_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"tracking.uri: {uri}: pods write to")):
        portable(config(f"tracking.uri='{uri}'"))


def test_volumes_of_the_reading_step_hold_files() -> None:
    weights = "model.weights=/mnt/weights/net.npz"
    mounted = "volumes: [{claim: w, path: /mnt/weights}]"
    assert portable(config(weights, f"cluster={{{mounted}}}")).model.weights == (
        "/mnt/weights/net.npz"
    )
    portable(config(weights, f"cluster.steps.train_baseline={{{mounted}}}"))
    for elsewhere in (
        f"cluster.steps.prepare_data={{{mounted}}}",
        "cluster.volumes=[{claim: w, path: /mnt/weight}]",
    ):
        with pytest.raises(ConfigError, match=r"model\.weights: /mnt/weights/net\.npz"):
            portable(config(weights, elsewhere))


def test_files_of_the_images_get_their_place_there() -> None:
    found = portable(
        config(
            IMAGES,
            "model={name: /home/me/net.keras, weights: /home/me/more/a/w.npz}",
            "cluster.images.files=[/home/me/net.keras, /home/me/more]",
        )
    )
    assert found.model.name == "/opt/user/files/net.keras"
    assert found.model.weights == "/opt/user/files/more/a/w.npz"
    assert portable(found).model == found.model


def test_files_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"received 'net\.keras' twice"):
        portable(config(IMAGES, "cluster.images.files=[/a/net.keras, /b/net.keras]"))


def test_modules_of_the_images_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ["model.name=nets:build", "cluster.images.modules=[nets]"]
    assert portable(config(IMAGES, *overrides)).model.name == "nets:build"
    monkeypatch.setenv("QATLINE_IMAGE", "registry.example/mine:1")
    assert portable(config(*overrides)).model.name == "nets:build"


def test_spec_file_is_written_into_the_config(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text("- name: Conv2D\n  is_keras_class: true\n")
    found: Any = portable(config(f"quantization.spec={file}")).quantization.spec
    assert [(entry["name"], entry["is_keras_class"]) for entry in found] == [("Conv2D", True)]
    file.write_text("- colour: red\n")
    with pytest.raises(SpecError, match="colour"):
        portable(config(f"quantization.spec={file}"))


def test_folders_are_handed_on_in_shards() -> None:
    folder = "data={kind: folder, path: /mnt/images, image_size: [8, 8]}"
    mounted = "cluster.volumes=[{claim: w, path: /mnt}]"
    assert portable(config(folder, mounted)).data.storage == "shards"
    assert portable(config(folder, mounted, "data.storage=files")).data.storage == "files"
    assert portable(config()).data.storage == "auto"
