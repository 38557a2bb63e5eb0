"""export_onnx on the smallest models: runs, records and files."""

import inspect
import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from keras import layers
from onnx.reference import ReferenceEvaluator

from qat_lib import TensorQuantizer, export_onnx
from qat_lib.analysis.findings import Finding, Rule
from qat_lib.core.plan import QuantizationPlan
from qat_lib.errors import ExportError, VerificationError
from qat_lib.export import finish, passes
from qat_lib.export.finish import lower
from qat_lib.export.options import ExportOptions
from qat_lib.onnx_view.metadata import read_metadata
from qat_lib.preprocessing import Preprocessing

PASSES = [
    "hoist_loop_invariants", "fold_constants", "remove_identities", "use_output_padding",
    "fix_reshape_targets", "fix_resize_scales",
    "merge_einsum", "write_activation_ranges", "store_quantized_weights", "embed_preprocessing",
    "use_nearest_resize", "recover_prelu", "merge_batched_dense", "merge_depth_to_space",
    "remove_transposes", "fold_constants",
    "use_global_pools", "reorder_flattened_weights", "sink_squeezes", "eliminate_singleton_reshapes",
    "recover_batchnorm",
    "recover_layernorm", "merge_bias", "fold_batchnorm", "merge_padding", "remove_redundant_bounds",
    "write_clips",
    "rectify_early",
    "quantize_early",
    "hoist_strides", "quantize_unsigned", "remove_redundant_bounds again",
    "convert_inputs_to_nchw", "store_float_weights", "convert_float_to_half", "name_canonically",
]  # fmt: skip
OPENVINO = {
    "rectify_early",
    "quantize_early",
    "hoist_strides",
    "quantize_unsigned",
    "remove_redundant_bounds again",
}
OPTIONAL = {
    "embed_preprocessing",
    "convert_inputs_to_nchw",
    "store_float_weights",
    "convert_float_to_half",
} | OPENVINO
IMAGES = Preprocessing(image_shape=(4, 4, 1))


@pytest.mark.parametrize(
    ("options", "preprocessing", "more"),
    [
        ({}, None, set()),
        ({}, IMAGES, set()),
        ({"embed_preprocessing": True}, None, set()),
        ({"embed_preprocessing": True}, IMAGES, {"embed_preprocessing"}),
        ({"target": "openvino"}, None, OPENVINO),
        ({"target": "onnxruntime"}, None, set()),
        ({"channels_first_input": True}, None, {"convert_inputs_to_nchw"}),
        ({"weights": "qdq"}, None, {"store_float_weights"}),
        ({"float_precision": "fp16"}, None, {"convert_float_to_half"}),
    ],
)
def test_lower_runs_the_passes_that_the_options_ask_for(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], preprocessing: Any, more: set[str]
) -> None:
    ran: list[str] = []
    for name in {name.removesuffix(" again") for name in PASSES}:
        monkeypatch.setattr(passes, name, lambda model, *_, name=name: ran.append(name) or model)
    graph = ir.Model(ir.Graph([], [], nodes=[]), ir_version=8)
    assert lower(graph, {}, ExportOptions(**options), preprocessing) is not graph
    expected = [name for name in PASSES if name not in OPTIONAL - more]
    assert ran == [name.removesuffix(" again") for name in expected]


def dense(**options: Any) -> keras.Model:
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(3, name="dense", **options)(x))


def quantized(count: int = 1, *, unsigned: bool = False) -> keras.Model:
    x = y = keras.Input((4,), name="x")
    for index in range(count):
        quantizer = TensorQuantizer(name=f"q{index}", unsigned=unsigned)
        y = layers.ReLU(name=f"relu{index}")(quantizer(y))
        quantizer.amax = 1.0
    return keras.Model(x, y)


def image_model() -> keras.Model:
    image, vector = keras.Input((4, 4, 1), name="image"), keras.Input((3,), name="vector")
    return keras.Model(
        [image, vector], [layers.Conv2D(2, 2, name="y")(image), layers.ReLU(name="z")(vector)]
    )


def metadata_of(path: Path) -> dict[str, str]:
    return read_metadata(onnx.load(path))


def test_export_has_the_defaults_that_it_documents() -> None:
    defaults = {
        n: p.default
        for n, p in inspect.signature(export_onnx).parameters.items()
        if p.kind is p.KEYWORD_ONLY
    }
    assert defaults == {
        "target": "tensorrt",
        "opset": 17,
        "weights": "int8",
        "float_precision": "fp32",
        "channels_first_input": False,
        "batch_size": None,
        "preprocessing": None,
        "embed_preprocessing": False,
        "metadata": None,
        "plan": None,
        "options": None,
    }


def test_export_reports_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 103.0, 110.0])
    monkeypatch.setattr(finish.time, "perf_counter", lambda: next(clock))
    path = tmp_path / "model.onnx"
    report = export_onnx(quantized(2), path)
    assert (report.path, report.bytes, report.opset) == (path, path.stat().st_size, 17)
    assert (report.quantizers, report.nodes) == (2, len(onnx.load(path).graph.node))
    assert (report.seconds, report.conversion_seconds) == (10.0, 3.0)
    plain = report.to_dict()
    assert (plain["path"], plain["opset"], plain["findings"]) == (str(path), 17, [])
    assert json.loads(json.dumps(plain)) == plain
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(
    ("options", "opset"),
    [
        ({"opset": 18}, 18),
        ({"float_precision": "fp16"}, 19),
        ({"float_precision": "fp16", "opset": 21}, 21),
    ],
)
def test_export_raises_the_operator_set_for_half_precision_only(
    tmp_path: Path, options: dict[str, Any], opset: int
) -> None:
    assert export_onnx(dense(), tmp_path / "model.onnx", **options).opset == opset
    assert {each.version for each in onnx.load(tmp_path / "model.onnx").opset_import} == {opset}
    recorded = json.loads(metadata_of(tmp_path / "model.onnx")["quantizers"])
    assert recorded["half"] is (options.get("float_precision") == "fp16")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_export_names_the_open_dimensions_of_its_border(tmp_path: Path, precision: Any) -> None:
    export_onnx(dense(), tmp_path / "model.onnx", float_precision=precision)
    graph = onnx.load(tmp_path / "model.onnx").graph
    first = [value.type.tensor_type.shape.dim[0] for value in (*graph.input, *graph.output)]
    assert [dim.dim_param for dim in first] == ["batch", "batch"]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_export_gives_the_same_bytes_each_time(tmp_path: Path, precision: Any) -> None:
    x = keras.Input((None, None, 3), name="image")
    y = layers.ReLU(name="relu")(layers.Conv2D(4, 3, name="conv")(x))
    model = keras.Model(x, layers.GlobalAveragePooling2D(name="pool")(y))
    for name in ("one.onnx", "two.onnx"):
        export_onnx(model, tmp_path / name, float_precision=precision)
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


def test_export_records_what_the_file_is(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    export_onnx(
        image_model(),
        path,
        target="onnxruntime",
        metadata={"classes": ["a", "b"], "note": "text", "best": 0.5},
    )
    found = metadata_of(path)
    assert (found["target"], found["preprocessing_embedded"]) == ("onnxruntime", "false")
    assert json.loads(found["layout"]) == {"image": "NHWC", "y": "NHWC"}
    assert json.loads(found["tensors"]).keys() >= {"y", "z"}
    assert (found["note"], json.loads(found["classes"]), json.loads(found["best"])) == (
        "text",
        ["a", "b"],
        0.5,
    )
    assert found["version"]
    assert not {"preprocessing", "plan_digest"} & set(found)


def test_export_records_layout_and_preprocessing(tmp_path: Path) -> None:
    x = keras.Input((4, 4, 1), name="image")
    model = keras.Model(x, layers.Conv2D(2, 2)(x))
    path = tmp_path / "model.onnx"
    export_onnx(model, path, channels_first_input=True, preprocessing=IMAGES)
    found = metadata_of(path)
    assert [*json.loads(found["layout"]).values()] == ["NCHW", "NHWC"]  # input, output
    assert Preprocessing.from_dict(json.loads(found["preprocessing"])) == IMAGES
    assert found["preprocessing_embedded"] == "false"
    export_onnx(model, path, preprocessing=IMAGES, embed_preprocessing=True)
    assert metadata_of(path)["preprocessing_embedded"] == "true"
    assert onnx.load(path).graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8


def test_export_needs_the_preprocessing_that_it_embeds(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="needs the preprocessing"):
        export_onnx(dense(), tmp_path / "model.onnx", embed_preprocessing=True)


@pytest.mark.parametrize(
    "key", ["target", "version", "tensors", "layout", "quantizers", "preprocessing_embedded"]
)
def test_export_keeps_its_own_metadata(tmp_path: Path, key: str) -> None:
    with pytest.raises(ExportError, match=f"Received: '{key}'"):
        export_onnx(dense(), tmp_path / "model.onnx", metadata={"note": "", key: "mine"})
    assert list(tmp_path.iterdir()) == []


def test_export_of_a_source_tree_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise finish.PackageNotFoundError(name)

    monkeypatch.setattr(finish, "version", missing)
    export_onnx(dense(), tmp_path / "model.onnx")
    assert metadata_of(tmp_path / "model.onnx")["version"] == "0+unknown"


@pytest.mark.parametrize("target", ["openvino", "onnxruntime", "tensorrt"])
def test_export_refuses_unsigned_quantizers_for_tensorrt(tmp_path: Path, target: Any) -> None:
    if target != "tensorrt":
        assert (
            export_onnx(
                quantized(2, unsigned=True), tmp_path / "model.onnx", target=target
            ).quantizers
            == 2
        )
        return
    with pytest.raises(ExportError, match=r"Received 2 unsigned ones, such as 'q0'"):
        export_onnx(quantized(2, unsigned=True), tmp_path / "model.onnx", target=target)
    assert export_onnx(quantized(2), tmp_path / "model.onnx", target=target).quantizers == 2


PLAN = QuantizationPlan(model="m", mode="full", quantizers=(), skipped=())


def test_export_records_the_plan(tmp_path: Path) -> None:
    export_onnx(dense(), tmp_path / "model.onnx", plan=PLAN)
    assert metadata_of(tmp_path / "model.onnx")["plan_digest"] == PLAN.digest()


def finding(severity: Any, code: str) -> Finding:
    rule = Rule(code, severity, "wrong")
    return rule.at("node", message=f"{code} is wrong.", advice="Mend it.")


def verification(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> list[Any]:
    """Let the verification find those; return what it was asked."""
    asked: list[Any] = []

    def verify(path: Path, plan: Any) -> list[Finding]:
        asked.append((path, plan, path.is_file()))
        return list(findings)

    monkeypatch.setattr(finish, "verify_onnx", verify)
    return asked


def test_export_verifies_the_draft_against_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warning = finding("warning", "W1")
    asked = verification(monkeypatch, warning)
    report = export_onnx(dense(), tmp_path / "model.onnx", plan=PLAN)
    assert report.findings == (warning,)
    assert report.to_dict()["findings"] == [warning.to_dict()]
    ((draft, plan, there),) = asked
    assert (draft.name, draft.parent.parent, plan, there) == ("model.onnx", tmp_path, PLAN, True)
    assert str(os.getpid()) in draft.parent.name


def test_export_that_fails_verification_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    verification(
        monkeypatch, *(finding("error", f"E{i}") for i in range(4)), finding("warning", "W1")
    )
    with pytest.raises(VerificationError) as raised:
        export_onnx(dense(), path)
    text = str(raised.value)
    assert text.startswith("The exported graph of model.onnx is wrong (4 errors). First: ")
    assert [code for code in ("E0", "E1", "E2", "E3", "W1") if code in text] == ["E0", "E1", "E2"]
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(("limit", "external"), [(47, True), (48, False), (60, False)])
def test_export_puts_large_weights_into_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, external: bool
) -> None:
    """The kernel of 4 x 3 float32 values has 48 bytes."""
    monkeypatch.setattr(finish, "EXTERNAL_DATA_ABOVE", limit)
    path = tmp_path / "model.onnx"
    report = export_onnx(dense(use_bias=False), path)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == (["model.onnx", "model.onnx.data"] if external else ["model.onnx"])
    assert report.bytes == sum(p.stat().st_size for p in tmp_path.iterdir())
    (stored,) = (
        t for t in onnx.load(path).graph.initializer if t.data_type == onnx.TensorProto.FLOAT
    )
    assert onnx.numpy_helper.to_array(stored).size == 12


def test_export_report_ignores_data_of_an_earlier_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    with monkeypatch.context() as patched:
        patched.setattr(finish, "EXTERNAL_DATA_ABOVE", 47)
        export_onnx(dense(use_bias=False), path)
    report = export_onnx(dense(use_bias=False), path)
    assert path.with_name("model.onnx.data").is_file()
    assert report.bytes == path.stat().st_size


def test_file_limit_is_below_protobuf() -> None:
    assert 1.8e9 < finish.EXTERNAL_DATA_ABOVE < 2**31 - 2**27


def test_export_makes_the_folder_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "er" / "model.onnx"
    export_onnx(dense(), path)
    assert [p.name for p in path.parent.iterdir()] == ["model.onnx"]


def test_export_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="Expected to write"):
        export_onnx(dense(), tmp_path / "file" / "model.onnx")


def test_export_tells_what_the_disk_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(finish.ir, "save", full)
    with pytest.raises(
        ExportError, match=r"write .*model\.onnx\. It failed: No space left on device\."
    ):
        export_onnx(dense(), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_export_gives_the_models_answers(tmp_path: Path) -> None:
    model = dense()
    export_onnx(model, tmp_path / "model.onnx", batch_size=2)
    proto = onnx.load(tmp_path / "model.onnx")
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    (y,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(y, model(x), rtol=1e-5)


def test_export_keywords_have_the_defaults_of_the_options() -> None:
    parameters = inspect.signature(export_onnx).parameters
    defaults = {field.name: field.default for field in fields(ExportOptions)}
    keywords = {name: parameters[name].default for name in defaults if name in parameters}
    assert keywords.items() <= defaults.items()
    assert len(keywords) == 7


def test_export_takes_options_as_one_value(tmp_path: Path) -> None:
    options = ExportOptions(opset=18, batch_size=3)
    report = export_onnx(dense(), tmp_path / "model.onnx", options=options)
    assert report.opset == 18
    (given,) = onnx.load(tmp_path / "model.onnx").graph.input
    assert given.type.tensor_type.shape.dim[0].dim_value == 3
    with pytest.raises(ExportError, match="as one value or as keywords, not both"):
        export_onnx(dense(), tmp_path / "other.onnx", options=options, batch_size=3)
    assert not (tmp_path / "other.onnx").exists()
