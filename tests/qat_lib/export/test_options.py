"""The options of an export: accepted values and defaults."""

from typing import Any

import pytest

from qat_lib.errors import ExportError
from qat_lib.export.options import NEWEST_OPSET, OLDEST_OPSET, ExportOptions, option_fields


def test_export_options_by_default() -> None:
    options = ExportOptions()
    assert (options.target, options.opset, options.weights, options.float_precision) == (
        "tensorrt",
        17,
        "int8",
        "fp32",
    )
    assert (options.channels_first_input, options.batch_size, options.embed_preprocessing) == (
        False,
        None,
        False,
    )
    assert OLDEST_OPSET == 13
    assert NEWEST_OPSET == 21


@pytest.mark.parametrize(
    "options",
    [
        *({"target": target} for target in ("tensorrt", "openvino", "onnxruntime")),
        *({"weights": weights} for weights in ("int8", "qdq")),
        *({"float_precision": precision} for precision in ("fp32", "fp16")),
        *({"batch_size": size} for size in (None, 1, 2, 65536)),
    ],
)
def test_export_options_accept(options: dict[str, Any]) -> None:
    (name,) = options
    assert getattr(ExportOptions(**options), name) == options[name]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "tvm"}, "target to be one of tensorrt, openvino, onnxruntime. Received: 'tvm'"),
        ({"weights": "fp8"}, "weights to be one of int8, qdq, int4. Received: 'fp8'"),
        ({"weights": "int4"}, "int8 or qdq for TensorRT.*Received: int4"),
        ({"float_precision": "bf16"}, "float_precision to be one of fp32, fp16. Received: 'bf16'"),
        *(
            ({"batch_size": size}, f"from 1 to 65536.*{size!r}")
            for size in (0, -1, 65537, True, False)
        ),
    ],
)
def test_export_options_refuse(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        ExportOptions(**options)


@pytest.mark.parametrize(
    ("given", "opset"), [({}, 17), ({"float_precision": "fp16"}, 19), ({"opset": 13}, 13)]
)
def test_float16_raises_the_opset(given: dict[str, Any], opset: int) -> None:
    assert ExportOptions(**given).opset == opset


def test_float16_keeps_a_newer_opset() -> None:
    assert ExportOptions(float_precision="fp16", opset=21).opset == 21


@pytest.mark.parametrize("target", ["openvino", "onnxruntime"])
def test_int4_weights_raise_the_opset(target: Any) -> None:
    assert ExportOptions(weights="int4", target=target).opset == 21


def test_option_fields_describe_every_option() -> None:
    fields = {each.name: each for each in option_fields()}
    assert list(fields) == list(ExportOptions.__dataclass_fields__)
    assert all(each.info.help.endswith(".") for each in fields.values())
    opset = fields["opset"]
    assert (opset.kind, opset.default) == (int, 17)
    assert (opset.info.least, opset.info.most) == (OLDEST_OPSET, NEWEST_OPSET)
    shown = {name for name, each in fields.items() if each.info.in_config}
    assert shown == {"target", "opset", "weights", "float_precision"}
    assert [name for name, each in fields.items() if not each.info.in_command] == [
        "target",
        "embed_preprocessing",
    ]
