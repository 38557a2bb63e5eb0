import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from qat_lib.errors import ConfigError
from qatline.components import settings
from qatline.pipelines.config.run_config import RunConfig, build_config, load_config, read_config


def write(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_defaults_are_the_main_job(tmp_path: Path) -> None:
    config = load_config(cwd=tmp_path)
    assert config.data.kind == "digits"
    assert config.model.name == "resnet_digits"
    assert config.output == str(tmp_path / "runs")


def test_layers_override_in_order(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "training: {epochs: 3, batch_size: 8}\nqat: {epochs: 2}\n"
        "profiles:\n  quick: {training: {epochs: 1}}\n  big: {training: {epochs: 50}, seed: 7}\n",
    )
    assert load_config(path).training.epochs == 3
    quick = load_config(path, profiles=["quick"])
    assert (quick.training.epochs, quick.training.batch_size, quick.qat.epochs) == (1, 8, 2)
    both = load_config(path, profiles=["quick", "big"])
    assert (both.training.epochs, both.seed) == (50, 7)
    over = load_config(path, profiles=["big"], overrides=["training.epochs=9", "qat={epochs: 0}"])
    assert (over.training.epochs, over.qat.epochs) == (9, 0)


@pytest.mark.parametrize("retrain", ["", "retrain: {start: scratch}\n"])
def test_qat_auto_is_short_for_the_key_of_retraining(tmp_path: Path, retrain: str) -> None:
    path = write(tmp_path, f"qat: auto\n{retrain}profiles:\n  q: {{qat: auto}}\n")
    assert load_config(path).retrain.qat == "auto"
    assert load_config(profiles=["q"], path=path).retrain.qat == "auto"
    assert load_config(overrides=["qat=auto"]).retrain.qat == "auto"
    assert build_config({"qat": "auto"}).retrain.qat == "auto"


def test_config_is_frozen_and_round_trips() -> None:
    config = load_config(overrides=["qat.learning_rate=1e-4", "model.options={width: 8}"])
    assert config.qat.learning_rate == 1e-4
    assert RunConfig.model_validate(yaml.safe_load(yaml.safe_dump(config.to_dict()))) == config
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3  # type: ignore[misc]


def test_config_has_numbers_as_steps_get_them() -> None:
    options = load_config(overrides=["model.options={a: 1.0, b: 0.5}"]).model.options
    assert [(type(value), value) for value in options.values()] == [(int, 1), (float, 0.5)]


def test_pipeline_parameters_hold_no_null_and_no_place() -> None:
    parameters = load_config().pipeline_parameters()
    assert {"seed", "data", "model", "qat", "gate"} <= set(parameters)
    assert not {"output", "tracking", "cluster"} & set(parameters)
    assert "null" not in json.dumps(parameters)
    assert RunConfig.model_validate(parameters).data == RunConfig().data


@pytest.mark.parametrize(
    "options", [{"classifier_activation": None}, {"sizes": [1, None]}, {"nested": {"a": None}}]
)
def test_pipeline_parameters_keep_nulls_of_model_options(options: dict[str, Any]) -> None:
    config = build_config({"model": {"name": "keras.applications:MobileNet", "options": options}})
    handed_over = config.pipeline_parameters()["model"]
    assert "null" in handed_over["options"]
    assert settings.ModelSettings.model_validate(handed_over).options == options


@pytest.mark.parametrize(
    ("section", "values"),
    [("task", {"name": "segmentation"}), ("data", {"kind": "python", "name": "mine:data"})],
)
def test_pipeline_parameters_keep_nulls_of_user_options(
    section: str, values: dict[str, Any]
) -> None:
    options = {"weights": [None, 1]}
    config = build_config({section: {**values, "options": options}})
    handed_over = config.pipeline_parameters()[section]
    assert type(getattr(config, section)).model_validate(handed_over).options == options


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task": {"name": "regresion"}}, "task.name: expected classification, .*'regresion'"),
        ({"task": {"name": "mine:"}}, "task.name: expected"),
        ({"data": {"kind": "table", "path": "a.csv"}}, "needs data.target_columns"),
        ({"data": {"kind": "masks"}}, "data.kind=masks needs data.path"),
        ({"data": {"kind": "python", "name": "mine"}}, "needs data.name=module:function"),
        (
            {
                "data": {
                    "kind": "table",
                    "path": "s3://bucket/a.csv",
                    "target_columns": ["y"],
                    "image_column": "x",
                }
            },
            "expected data.path on this machine",
        ),
    ],
)
def test_incomplete_data_or_task_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(values)


def test_pipeline_parameters_keep_options_without_nulls() -> None:
    options = {"sizes": [1, 2], "nested": {"a": [0, False, "", {}]}}
    config = build_config({"model": {"name": "keras.applications:MobileNet", "options": options}})
    assert config.pipeline_parameters()["model"]["options"] == options


@pytest.mark.parametrize("options", ["alpha=1", "{alpha: 1}", "[1]"])
def test_build_config_model_options_are_a_mapping(options: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.options"):
        build_config({"model": {"options": options}})


def test_relative_paths_resolve_against_file_or_cwd(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    path = write(
        tmp_path / "configs",
        "output: out\ndata: {kind: npz, path: ../data/x.npz}\nmodel: {name: my.keras, weights: w.npz}\n"
        "quantization: {spec: spec.yaml}\n",
    )
    config = load_config(path, cwd=tmp_path)
    assert config.output == str(tmp_path / "configs" / "out")
    assert config.data.path == str(tmp_path / "data" / "x.npz")
    assert config.model.name == str(tmp_path / "configs" / "my.keras")
    assert config.model.weights == str(tmp_path / "configs" / "w.npz")
    assert config.quantization.spec == str(tmp_path / "configs" / "spec.yaml")
    assert load_config(path, overrides=["data.path=x.npz"], cwd=tmp_path).data.path == str(
        tmp_path / "x.npz"
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.name", "keras.applications:ResNet50"),
        ("model.name", "my.module:build"),
        ("model.weights", "imagenet"),
        ("data.path", "s3://bucket/data.npz"),
        ("model.name", "s3://bucket/net.keras"),
        ("model.weights", "s3://bucket/net.weights.h5"),
    ],
)
def test_what_is_no_path_stays_as_it_is(key: str, value: str) -> None:
    config = load_config(overrides=["data.kind=npz", "data.path=/x", f"{key}={value}"])
    section, name = key.split(".")
    assert getattr(getattr(config, section), name) == value


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["engine.backend=tensorrt", "export.weights=int4"],
            "export: Expected weights=int8 or qdq for TensorRT",
        ),
        (
            ["engine.backend=auto", "export.weights=int4"],
            "Export with target=openvino or onnxruntime",
        ),
        (
            ["export.target=openvino", "engine.backend=tensorrt"],
            "Set export.target to auto or tensorrt",
        ),
        (
            ["quantization.unsigned=always", "engine.backend=tensorrt"],
            "Set quantization.unsigned to auto or never",
        ),
        (
            ["quantization.unsigned=always", "export.target=tensorrt"],
            "or backend and target to openvino",
        ),
    ],
)
def test_impossible_config_is_refused_before_training(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(overrides=overrides)
    assert load_config(overrides=overrides[:1])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.epoch=3", "unknown key 'training.epoch'; did you mean 'training.epochs'?"),
        ("trainin.epochs=3", "unknown key 'trainin'; did you mean 'training'?"),
        ("epochs=3", "unknown key 'epochs'; did you mean 'training.epochs'?"),
        ("qat.lr=3", "unknown key 'qat.lr'; did you mean 'qat.learning_rate'?"),
        ("data.preprocessing.men=[1]", "did you mean 'data.preprocessing.mean'?"),
        ("zzz=3", "unknown key 'zzz'; expected one of: seed, output, data"),
        ("training.epochs=-1", "training.epochs: expected a number of at least 0, received -1"),
        ("training.epochs=many", "training.epochs: expected an integer, received 'many'"),
        ("training.epochs=2.5", "training.epochs: expected an integer, received 2.5"),
        (
            "training.augment=blur",
            "augment: expected none, shift, flip, flip_crop or module:function; received 'blur'",
        ),
        (
            "data.image_size=[1, 2, 3]",
            "data.image_size: expected at most 2 items, received [1, 2, 3]",
        ),
        ("gate.required=.nan", "gate.required: expected a finite number, received nan"),
        ("quantization.spec=3", "quantization.spec: expected a list or text, received 3"),
        ("training=5", "training: expected a mapping, received 5"),
        ("data.kind=npz", "data.kind=npz needs data.path"),
        (
            "training.epochs",
            "Expected --set section.key=value, such as training.epochs=5; received 'training.epochs'",
        ),
        ("cluster.steps.build_engin.cpu=4", "did you mean 'cluster.steps.build_engine'?"),
        (
            "cluster.build_engine.cpu=4",
            "unknown key 'cluster.build_engine'; did you mean 'cluster.steps.build_engine'?",
        ),
        ("cluster.steps.evaluate.memroy=4Gi", "did you mean 'cluster.steps.evaluate.memory'?"),
        (
            "cluster.cpu=0",
            "cluster.cpu: expected a number of CPUs above 0, such as 4, 0.5 or 500m, received 0",
        ),
        ("cluster.cpu_limit=0.5m", "cluster.cpu_limit: expected a number of CPUs above 0, such as"),
        ("cluster.cpu=true", "cluster.cpu: expected a number of CPUs above 0, such as"),
        ("cluster.cpu=-1", "cluster.cpu: expected a number of CPUs above 0, such as"),
        (
            "cluster.memory=16",
            "expected a whole number above 0 with a unit, such as 512Mi or 16Gi, received 16",
        ),
        ("cluster.memory=16GB", "with a unit, such as 512Mi or 16Gi, received '16GB'"),
        ("cluster.memory=16K", "with a unit, such as 512Mi or 16Gi, received '16K'"),
        ("cluster.memory=1.5Gi", "with a unit, such as 512Mi or 16Gi, received '1.5Gi'"),
        ("cluster.memory=0Gi", "with a unit, such as 512Mi or 16Gi, received '0Gi'"),
        (
            "cluster.steps.evaluate.memory_limit=4",
            "cluster.steps.evaluate.memory_limit: expected a whole number",
        ),
        (
            "cluster={cpu: 4, cpu_limit: 3999m}",
            "cluster: expected cpu of at most cpu_limit=3999m, received 4",
        ),
        (
            "cluster={memory: 8Gi, steps: {evaluate: {memory_limit: 8G}}}",
            "cluster.steps.evaluate: expected memory of at most memory_limit=8G, received 8Gi",
        ),
        (
            "cluster.accelerator_count=-1",
            "cluster.accelerator_count: expected a number of at least 0, received -1",
        ),
        (
            "cluster.accelerator_type=gpu",
            "cluster.accelerator_type: expected the name of a resource of the nodes",
        ),
        ("cluster.accelerator_type=null", "cluster.accelerator_type: expected text, received None"),
        (
            "cluster.steps.evaluate.accelerator_type=nvidia.com/gpu",
            "cluster.steps.evaluate: expected accelerator_count with accelerator_type=nvidia.com/gpu",
        ),
        (
            "cluster.node_selector={gpu: true}",
            "cluster.node_selector.gpu: expected text, received True",
        ),
        (
            "cluster.tolerations=[{key: a, keys: b}]",
            "cluster.tolerations.0.keys: expected no key of this name",
        ),
        (
            "cluster.tolerations=[{key: a, effect: Never}]",
            "cluster.tolerations.0.effect: expected one of 'NoSchedule'",
        ),
        ("cluster.tolerations=[{key: a, operator: Equal}]", "received Equal with value None"),
        (
            "cluster.tolerations=[{key: a, operator: Exists, value: b}]",
            "received Exists with value 'b'",
        ),
        ("export.opset=22", "export.opset: expected a number of at most 21, received 22"),
        (
            "model.name=':'",
            "model.name: expected module:function or keras.applications:<Name>, received ':'",
        ),
        ("model.name='a b:c'", "model.name: expected module:function"),
        ("model.name='keras.applications:'", "model.name: expected module:function"),
        ("model.name=' '", "model.name: expected the name of a network, received ' '"),
        ("model.name=resnet_digit", "Did you mean 'resnet_digits'?"),
        (
            "model.name=m.h5",
            "model.name: expected a .keras file (load the model in Keras and save it as one)",
        ),
        ("model.name=gs://b/m.keras", "model.name: expected a .keras file on this machine"),
        ("model.name=s3://b/m.h5", "model.name: expected a .keras file on this machine"),
        (
            "model.weights=https://h/w.npz",
            "model.weights: expected imagenet or a file on this machine",
        ),
        (
            "quantization.cases=[TensorRTQDQCas]",
            "unknown case 'TensorRTQDQCas'. Did you mean TensorRTQDQCase?",
        ),
        ("quantization.cases=['a:']", "unknown case 'a:'. Known: "),
        ("quantization.spec=[{nam: x}]", "of the quantization spec has unknown key 'nam'"),
        (
            "data.image_size=[0, 8]",
            "data.image_size.0: expected a number of at least 1, received 0",
        ),
        (
            "data.image_size=[8, 100000]",
            "data.image_size.1: expected a number of at most 8192, received 100000",
        ),
        ("training.batch_size=100000", "training.batch_size: expected a number of at most 65536"),
        ("data.image_size=[4096, 4096]", "training.batch_size: expected at most 4 GiB of pixels"),
        (
            "data.preprocessing.std=[0]",
            "data.preprocessing.std.0: expected a number greater than 0.0, received 0",
        ),
        (
            "data.preprocessing.mean=[]",
            "data.preprocessing.mean: expected at least 1 items, received []",
        ),
        (
            "data.classes=[a, b, a]",
            "data.classes: expected each name once, received 'a' more than once",
        ),
        (
            "data={kind: npz, path: 'https://h/x.npz'}",
            "data.path: expected a file on this machine or s3://bucket/key",
        ),
        (
            "data={kind: folder, path: 'gs://b/x'}",
            "data.path: expected a folder or an archive of it on this machine or s3://bucket/key",
        ),
        (
            "data={kind: folder, path: 's3://b/x', storage: files}",
            "data.storage: expected shards or auto for images in S3 or in an archive",
        ),
        (
            "data={kind: folder, path: x.zip, storage: files}",
            "data.storage: expected shards or auto for images in S3 or in an archive",
        ),
        (
            "tracking.uri='me:pw@host'",
            "tracking.uri: expected the address of a server or a database, such as",
        ),
        ("tracking.uri=mlflow.db", "sqlite:////folder/mlflow.db, received something else"),
        (
            "tracking.experiment=''",
            "tracking.experiment: expected text of at least 1 characters, received ''",
        ),
        ("engine.threads=100000", "engine.threads: expected a number of at most 4096"),
        (
            "training.learning_rate=1e300",
            "training.learning_rate: expected a number of at most 100.0",
        ),
        ("output=s3://b/runs", "output: expected a folder on this machine, received s3://b/runs"),
        (
            "cluster.secret_env={A: b}",
            "cluster.secret_env.A: expected a Kubernetes secret and its key, such as",
        ),
        (
            "cluster.secret_env={1A: b/c}",
            "expected the name of an environment variable, received '1A'",
        ),
        ("seed={a: 1, a: 2}", "--set seed, line 1, column 8: the key 'a' is given twice"),
        ("seed=[1", "--set seed, line 1"),
    ],
)
def test_a_wrong_override_is_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=[override])
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "cluster",
    [
        {"cpu": 4, "cpu_limit": "4000m"},
        {"cpu": 0.25, "memory": "8192Mi", "memory_limit": "8Gi"},
        {
            "accelerator_count": 1,
            "steps": {"evaluate": {"accelerator_type": "a.b/c"}, "promote": None},
        },
        {
            "node_selector": {"a": "b"},
            "tolerations": [{"key": "a"}, {"key": "a", "operator": "Equal", "value": "b"}],
        },
    ],
)
def test_cluster_section_round_trips(
    cluster: dict[str, Any],
) -> None:
    config = build_config({"cluster": cluster})
    assert RunConfig.model_validate(yaml.safe_load(yaml.safe_dump(config.to_dict()))) == config
    assert config.pipeline_parameters() == RunConfig().pipeline_parameters()
    assert config.cluster != RunConfig().cluster


def test_step_resources_override_the_section() -> None:
    config = load_config(
        overrides=["cluster={cpu: 2, memory: 4Gi}", "cluster.steps.evaluate={memory: 8Gi}"]
    )
    assert (config.cluster.of("evaluate").cpu, config.cluster.of("evaluate").memory) == ("2", "8Gi")
    assert (config.cluster.of("promote").cpu, config.cluster.of("promote").memory) == ("2", "4Gi")
    assert config.cluster.of("evaluate").accelerator is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nseed: 2\n", "line 2, column 1: the key 'seed' is given twice"),
        ("data: {kind: digits, kind: npz}\n", "the key 'kind' is given twice"),
        ("- 1\n", "expected a mapping"),
        ("seed: !!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
        ("1: 2\n", "expected a text key, received 1"),
        ("a: [\n", "line 2"),
        (
            "profiles: {fast: {trainig: {}}}\n",
            "profile fast: unknown key 'trainig'; did you mean 'training'?",
        ),
        ("profiles: 3\n", "expected 'profiles' to map each name"),
        ("training: {epochs: x}\nseed: -1\n", "2 problems"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_file_and_unknown_profile(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Expected a config file at .*nope.yaml; there is none"):
        load_config(tmp_path / "nope.yaml")
    path = write(tmp_path, "profiles: {quick: {}}\n")
    with pytest.raises(
        ConfigError, match=r"expected a profile of this file \(quick\), received 'fast'"
    ):
        load_config(path, profiles=["fast"])
    with pytest.raises(ConfigError, match="Expected --config with --profile fast"):
        load_config(profiles=["fast"])


def test_empty_file_and_empty_sections_are_the_defaults(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "")).training == RunConfig().training
    assert load_config(write(tmp_path, "cluster:\n  # cpu: 3\n")).cluster == RunConfig().cluster
    assert load_config(write(tmp_path, "training:\nqat:\n  # epochs: 3\n")).qat == RunConfig().qat


def test_merge_keys_and_scientific_floats(tmp_path: Path) -> None:
    path = write(
        tmp_path, "qat: &q {learning_rate: 1e-4, epochs: 2}\ntraining: {<<: *q, epochs: 5}\n"
    )
    config = load_config(path)
    assert (config.training.learning_rate, config.training.epochs) == (1e-4, 5)


def test_a_tracking_uri_of_every_store_is_taken() -> None:
    uris = (
        "https://m.example",
        "http://[::1]:5000",
        "sqlite:///x.db",
        "postgresql+psycopg2://me@db/m",
        "databricks",
    )
    for uri in uris:
        assert load_config(overrides=[f"tracking.uri='{uri}'"]).tracking.uri == uri


def test_no_message_is_longer_than_a_screen() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=["training.epochs=" + "x" * 100_000])
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "'resnet_digits' is not a reference network of PyTorch .*resnet20_cifar10"),
        (["model.name=resnet20_cifar"], "Did you mean 'resnet20_cifar10'.*module:function"),
        (["model.name=a.keras"], "expected a reference network of PyTorch or module:function"),
        (["model.name=keras.applications:VGG16"], "expected a reference network of PyTorch"),
        (["model.name=a.pt"], "expected a reference network of PyTorch"),
        (["model.name=a:b", "model.weights=imagenet"], "expected a .npz file .* imagenet"),
        (["model.name=a:b", "quantization.equalize=true"], "does not support equalization"),
        (["model.name=a:b", "quantization.rounding=adaround"], "does not support adaround"),
    ],
)
def test_a_config_for_pytorch_is_checked(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(overrides=["model.framework=torch", *overrides])


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.name=resnet20_cifar10"],
        ["model.name=mobilenetv2_imagenet"],
        ["model.name=mine:build", "model.weights=w.npz"],
    ],
)
def test_a_config_for_pytorch_is_taken(overrides: list[str]) -> None:
    config = load_config(overrides=["model.framework=torch", *overrides])
    assert config.model.framework == "torch"
    assert config.pipeline_parameters()["model"]["framework"] == "torch"


@pytest.mark.parametrize("retrain", [{"start": "champion"}, {"only_new": True}])
def test_retraining_of_a_champion_needs_its_name(retrain: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"expected registry\.name, the name of the champion"):
        build_config({"retrain": retrain})
    assert build_config({"retrain": retrain, "registry": {"name": "x"}}).registry.name == "x"


@pytest.mark.parametrize("name", ["", "a/b", "a:b", "a'b", 'a"b', "a%b", ".", " a"])
def test_registry_refuses_names_that_no_store_takes(name: str) -> None:
    with pytest.raises(ConfigError, match=r"registry\.name"):
        build_config({"registry": {"name": name}})


@pytest.mark.parametrize("key", ["training.workers", "qat.workers"])
def test_several_workers_are_refused_for_pytorch(key: str) -> None:
    overrides = ["model.framework=torch", "quantization.equalize=false", f"{key}=2"]
    with pytest.raises(ConfigError, match="does not support workers"):
        load_config(overrides=overrides)


@pytest.mark.parametrize("section", ["training", "qat"])
def test_parts_of_batches_are_refused_for_several_workers(section: str) -> None:
    overrides = [f"{section}.accumulate_steps=2", "training.workers=2"]
    with pytest.raises(ConfigError, match=rf"{section}\.accumulate_steps: expected 1 with 2 work"):
        load_config(overrides=overrides)


def test_qat_takes_as_many_workers_as_the_training_by_default() -> None:
    config = load_config(overrides=["training.workers=3"])
    assert config.pipeline_parameters()["qat"]["workers"] == 3
    config = load_config(overrides=["training.workers=3", "qat.workers=2"])
    assert config.pipeline_parameters()["qat"]["workers"] == 2


MISTAKES = """
seed: -1
data: {kind: npz}
training: {epocs: 5, optimizer: adm, batch_size: 8, accumulate_steps: 9}
quantization: {cases: [TensorRTQDQCas, ResNetV1QDQCase], percentil: 99.9}
registry: {name: a/b}
retrain: {start: champion}
engine: {backend: tensorrt}
export: {target: openvino, opset: x}
profiles: {fast: {trainig: {}}}
"""


def test_all_mistakes_are_reported_together(tmp_path: Path) -> None:
    path = write(tmp_path, MISTAKES)
    reading = read_config(path, profiles=["fats"], overrides=["nothing", "gate.min_iou=0.5"])
    keys = [problem.key for problem in reading.problems]
    assert sorted(keys) == sorted(
        [
            *("trainig", "profiles", "nothing", "gate.min_iou", "training.epocs"),
            *("quantization.percentil", "seed", "data", "training.optimizer", "training"),
            *("quantization.cases", "registry.name", "export.opset", "export.target"),
        ]
    )
    with pytest.raises(ConfigError) as caught:
        reading.checked()
    for problem in reading.problems:
        assert problem.text in str(caught.value)


def test_what_is_right_can_be_used_beside_mistakes(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, MISTAKES)).config
    assert config.quantization.percentile == 99.9  # meant by percentil
    assert config.engine.backend == "tensorrt"
    assert (config.seed, config.data) == (RunConfig().seed, RunConfig().data)


def test_contradictions_with_wrong_values_are_not_searched_for(tmp_path: Path) -> None:
    text = "engine: {backend: tensort}\nexport: {target: openvino}\n"
    assert [problem.key for problem in read_config(write(tmp_path, text)).problems] == [
        "engine.backend"
    ]
