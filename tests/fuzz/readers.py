"""Every reader of our file formats, with a valid document.

Each comes with a use of what it read.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from hostile import damaged, edited, json_files
from hypothesis import strategies as st

#: Nothing that one of our own files says may make a reader take more than that.
LARGEST_IMAGE = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A file reader: ``read`` takes a path and uses what it reads.

    It does with it what the library does next.
    """

    name: str
    file: str
    files: st.SearchStrategy[bytes]
    valid: bytes
    read: Callable[[Path], Any]


def _json_reader(
    name: str, document: Any, read: Callable[[Path], Any], file: str = "file.json"
) -> Reader:
    return Reader(
        name=name,
        file=file,
        files=json_files(document),
        valid=json.dumps(document).encode(),
        read=read,
    )


def _sealed_reader(
    name: str,
    document: Any,
    read: Callable[[Path], Any],
    file: str,
    seal: Callable[[dict[str, Any]], Any],
) -> Reader:
    """Return a reader of self-digested documents, resealed after damage.

    The digest must not be all that protects it.
    """
    resealed = edited(document).map(
        lambda each: json.dumps(seal(each) if isinstance(each, dict) else each).encode()
    )
    reader = _json_reader(name, document, read, file)
    return replace(reader, files=resealed | reader.files)


def _seal_engine_manifest(document: dict[str, Any]) -> Any:
    from qat_lib.engines.manifest import seal

    return json.loads(seal(document))


def _seal_step_manifest(document: dict[str, Any]) -> Any:
    from qat_lib.support.digests import sha256_of_json

    content = {key: value for key, value in document.items() if key != "seal"}
    return {**content, "seal": sha256_of_json(content)}


def _yaml_reader(name: str, text: str, read: Callable[[Path], Any]) -> Reader:
    files = (
        json_files(yaml.safe_load(text)) | damaged(text.encode()) | st.sampled_from(_HOSTILE_YAML)
    )
    return Reader(name=name, file="file.yaml", files=files, valid=text.encode(), read=read)


_HOSTILE_YAML = [
    b"- &a [*a]",
    b"&a {name: *a}",
    b"!!python/object/apply:os.system [true]",
    b"? [1, 2]\n: 3",
    b"<<: 3",
    b"a: 2026-13-45",
    b"a: 0x" + b"f" * 5000,
    b"--- 1\n--- 2",
    b"a: !!binary _",
    b"a: !!timestamp x",
    b"? {a: 1}\n: 1",
    b"- {name: x, quantization_index: !!set {a, b}}",
    b"a: 1:99999999999999999999:1",
]


# ---------------------------------------------------------------------- plan, spec, preprocessing
PLAN = {
    "version": 1,
    "model": "net",
    "mode": "full",
    "quantizers": [
        {
            "name": "x_quantizer",
            "kind": "activation",
            "tensor": "x",
            "consumers": [{"layer": "conv", "input": 0}],
            "channel_axes": None,
            "group": None,
            "num_bits": 8,
            "unsigned": False,
            "calibrator": None,
            "range_policy": "ema",
            "reason": "input",
        },
        {
            "name": "k_quantizer",
            "kind": "weight",
            "tensor": "conv/kernel",
            "consumers": [],
            "channel_axes": [3],
        },
    ],
    "skipped": [{"layer": "soft", "class_name": "Softmax", "reason": "unsupported", "detail": ""}],
    "wrapped": ["conv"],
}


def read_plan(path: Path) -> None:
    from qat_lib.core.plan import QuantizationPlan

    plan = QuantizationPlan.load(path)
    assert str(plan)
    assert QuantizationPlan.from_json(plan.to_json()).digest() == plan.digest()


SPEC = """
- name: conv2d_1
  quantize_input: false
- {name: Add, is_keras_class: true, quantization_index: [0, 1], num_bits: 8}
- {name: "block3_.*", is_regex: true, calibrator: max, range_policy: ema, per_channel: true}
"""


def read_spec(path: Path) -> None:
    from qat_lib.core.spec import QuantizationSpec

    spec = QuantizationSpec.from_yaml(path)
    assert QuantizationSpec.from_json(spec.to_json()) == spec
    copy = path.with_name("copy.yaml")
    spec.to_yaml(copy)
    assert QuantizationSpec.from_yaml(copy) == spec


PREPROCESSING = {
    "image_shape": [4, 4, 3],
    "dtype": "uint8",
    "scale": 0.5,
    "mean": [0.1, 0.2, 0.3],
    "std": [1.0],
    "color": "rgb",
    "resize": None,
}


def read_preprocessing(path: Path) -> None:
    from qat_lib.preprocessing import Preprocessing

    definition = Preprocessing.load(path)
    definition.save(path)
    assert Preprocessing.load(path) == definition
    if np.prod(definition.image_shape, dtype=np.float64) < LARGEST_IMAGE:
        definition.apply(np.zeros((1, *definition.image_shape), definition.dtype))


# ---------------------------------------------------------------------- manifests
def _engine_manifest() -> dict[str, Any]:
    from qat_lib.engines.manifest import EngineManifest
    from qat_lib.engines.spec import BuildSpec, ShapeProfile
    from qat_lib.engines.values import PrecisionSummary, TensorInfo

    shapes = ShapeProfile(minimum=(1, 4), optimum=(4, 4), maximum=(8, 4))
    manifest = EngineManifest(
        backend="onnxruntime",
        backend_version="1.0",
        device={"name": "cpu", "architecture": "x86_64", "flags": []},
        digest="0" * 64,
        bytes=5,
        precision=PrecisionSummary(int8_layers=1, weighted_layers=2, layers={"int8": 1, "fp32": 1}),
        inputs=(TensorInfo(name="x", shape=(None, 4), dtype="float32"),),
        outputs=(TensorInfo(name="y", shape=(None, 2), dtype="float32"),),
        source={"path": "model.onnx", "sha256": "1" * 64},
        spec=BuildSpec(backend="onnxruntime", shapes={"x": shapes}).to_dict(),
        created="2026-01-01T00:00:00+00:00",
        build_seconds=1.5,
        classes=("a", "b"),
        preprocessing=PREPROCESSING,
    )
    document: dict[str, Any] = json.loads(manifest.to_json())
    return document


def read_engine_manifest(path: Path) -> None:
    from qat_lib.engines.manifest_file import read_manifest

    assert read_manifest(path.with_suffix("")).to_json()


def _step_manifest() -> dict[str, Any]:
    from qatline.components.store.manifest import FileEntry, Manifest

    files = {
        "model.onnx": FileEntry(sha256="0" * 64, size=5),
        "sub/plan.json": FileEntry(sha256="1" * 64, size=7),
    }
    return Manifest(
        files=files, step="export_onnx", key="k", metrics={"loss": 1.5}, settings={"a": 1}
    ).to_dict()


def read_step_manifest(path: Path) -> None:
    from qatline.components.store.manifest import read_step_manifest

    assert json.dumps(read_step_manifest(path.parent).to_dict())


# ---------------------------------------------------------------------- config
CONFIG = """
output: runs
data: {kind: digits, calibration_samples: 64, preprocessing: {scale: 0.0625, mean: [0.0], std: [1.0]}}
model: {name: resnet_digits}
training: {epochs: 2, batch_size: 32, learning_rate: 1e-3}
qat: {epochs: 1}
gate: {max_drop: 0.01}
profiles:
  quick: {qat: {epochs: 1}, data: {limit: 100}}
"""


def read_config(path: Path) -> None:
    from qatline.pipelines.config.run_config import load_config

    config = load_config(path, profiles=["quick"])
    assert json.dumps(config.to_dict())
    assert yaml.safe_dump(config.to_dict())


def read_override(path: Path) -> None:
    from qat_lib.errors import ConfigError
    from qatline.pipelines.config.run_config import load_config

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError("no command line can hold that") from error
    load_config(overrides=[text])


# ---------------------------------------------------------------------- arrays and graphs
def _npz() -> bytes:
    file = io.BytesIO()
    images = np.zeros((8, 4, 4, 3), np.uint8)
    np.savez(file, x_train=images, y_train=np.arange(8) % 2, x_test=images, y_test=np.arange(8) % 2)
    return file.getvalue()


def read_npz(path: Path) -> None:
    from qatline.components.data.npz_source import read_npz
    from qatline.components.settings import DataSettings

    read_npz(path, path.parent, DataSettings(kind="npz", path=str(path)))


TABLE = b"a,b,part,y\n" + b"".join(
    b"%d,%d.5,%s,%d\n" % (index, index, (b"train", b"test")[index % 2], index // 2 % 2)
    for index in range(8)
)


def read_table(path: Path) -> None:
    from qatline.components.data.table_source import read_table
    from qatline.components.settings import DataSettings
    from qatline.components.support.events import NullProgress

    settings = DataSettings(kind="table", path=str(path), target_columns=["y"], split_column="part")
    read_table(path, settings, NullProgress())


GRAPH = """<ir_version: 8, opset_import: ["" : 17]> net (float[1,4,6,6] x) => (float[1,4,6,6] y)
    <float s = {0.5}, int8 z = {0}, int8[4,4,1,1] w = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}, float[4] ws = {1,1,1,1},
     int8[4] wz = {0,0,0,0}> {
    q = QuantizeLinear (x, s, z)
    dq = DequantizeLinear (q, s, z)
    dw = DequantizeLinear <axis = 0> (w, ws, wz)
    c = Conv (dq, dw)
    r = Relu (c)
    y = Add (r, x) }"""


def _onnx() -> bytes:
    model = onnx.parser.parse_model(GRAPH)
    for node in model.graph.node:
        node.name = f"conv_quantizer/{node.op_type}"
    entry = model.metadata_props.add()
    entry.key, entry.value = "qatline.quantizers", json.dumps(RECORD)
    return bytes(model.SerializeToString())


RECORD = {
    "version": 1,
    "half": False,
    "activations": {"conv_quantizer": 0.5},
    "weights": {
        "conv_quantizer/DequantizeLinear": {
            "quantizer": "conv_quantizer",
            "scale": "AACAPwAAgD8AAIA/AACAPw==",
            "factor": "AACAPwAAgD8AAIA/AACAPw==",
            "digest": "0" * 64,
            "axis": 0,
        }
    },
    "disabled": [],
    "readers": {"conv_quantizer/DequantizeLinear": ["conv:0"]},
    "unsigned": [],
}


def read_onnx(path: Path) -> None:
    from qat_lib.analysis import analyze_onnx
    from qat_lib.export import verify_onnx

    assert str(analyze_onnx(path))
    verify_onnx(path)


NODES = {
    "x": {
        "conv_quantizer": ["conv_quantizer/QuantizeLinear", "conv_quantizer/DequantizeLinear"],
    },
    "conv": {"": ["conv_quantizer/Conv", "conv_quantizer/Relu"]},
}


def _with_entry(path: Path, key: str) -> Path:
    """Return a valid ONNX file with another file's text as metadata entry."""
    from qat_lib.errors import ExportError

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ExportError("an ONNX file holds no such text") from error
    model = onnx.load_from_string(_onnx())
    kept = [entry for entry in model.metadata_props if entry.key != key]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    model.metadata_props.add(key=key, value=text)
    file = path.with_suffix(".onnx")
    onnx.save(model, file)
    return file


def read_record(path: Path) -> None:
    """Read a quantizer record in the metadata of a valid ONNX file."""
    from qat_lib.export import verify_onnx

    verify_onnx(_with_entry(path, "qatline.quantizers"))


def read_identities(path: Path) -> None:
    """Read the node identities of a valid ONNX file and use them."""
    from qat_lib.analysis import analyze_onnx
    from qat_lib.analysis.tracing import trace_tensor
    from qat_lib.engines.onnx_graph import read_summary
    from qat_lib.export import verify_onnx

    file = _with_entry(path, "qatline.nodes")
    verify_onnx(file)
    report = analyze_onnx(file)
    assert report.to_json()
    assert read_summary(file)
    assert str(trace_tensor("conv_quantizer/Conv", file, analysis=report))


LAYERS = {
    "Layers": [
        {
            "Name": "conv_quantizer/Conv + conv_quantizer/Relu",
            "LayerType": "CaskConvolution",
            "Inputs": [
                {
                    "Name": "q",
                    "Location": "Device",
                    "Dimensions": [1, 4, 6, 6],
                    "Format/Datatype": "Int8",
                }
            ],
            "Outputs": [{"Name": "r", "Dimensions": [1, 4, 6, 6], "Format/Datatype": "Float"}],
            "Metadata": "[ONNX Layer: conv_quantizer/Conv]",
        },
        "Reformatting CopyNode",
    ],
    "Bindings": ["x", "y"],
}


def read_layers(path: Path) -> None:
    from qat_lib.analysis import analyze_onnx
    from qat_lib.analysis.comparison import compare

    model = path.with_name("model.onnx")
    if not model.exists():
        model.write_bytes(_onnx())
    assert compare(analyze_onnx(model), path).to_json()


def all_readers() -> list[Reader]:
    """Return the readers."""
    npz, graph = _npz(), _onnx()
    return [
        _json_reader("plan", PLAN, read_plan),
        _yaml_reader("spec", SPEC, read_spec),
        _json_reader("preprocessing", PREPROCESSING, read_preprocessing),
        _sealed_reader(
            "engine manifest",
            _engine_manifest(),
            read_engine_manifest,
            "model.engine.json",
            _seal_engine_manifest,
        ),
        _sealed_reader(
            "step manifest",
            _step_manifest(),
            read_step_manifest,
            "manifest.json",
            _seal_step_manifest,
        ),
        _yaml_reader("config", CONFIG, read_config),
        Reader(
            name="override",
            file="override",
            files=damaged(b"training.epochs=5") | damaged(b"data={kind: npz, path: x.npz}"),
            valid=b"training.epochs=5",
            read=read_override,
        ),
        Reader(name="npz", file="data.npz", files=damaged(npz), valid=npz, read=read_npz),
        Reader(name="table", file="data.csv", files=damaged(TABLE), valid=TABLE, read=read_table),
        Reader(name="onnx", file="model.onnx", files=damaged(graph), valid=graph, read=read_onnx),
        _json_reader("record", RECORD, read_record),
        _json_reader("identities", NODES, read_identities),
        _json_reader("layers", LAYERS, read_layers),
    ]
