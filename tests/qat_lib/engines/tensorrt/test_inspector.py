"""Reading the engine inspector's JSON in all versions' forms."""

from __future__ import annotations

from typing import Any

import pytest

from qat_lib.engines.tensorrt.inspector import is_detailed, read_inspector, tensor_type

INT8, FP16, FP32 = (
    "Thirty-two wide channel vectorized row major Int8 format",
    "Row major linear FP16 format",
    "Row major linear FP32",
)
NODES = {name: name for name in ("q", "conv1", "conv2", "add", "relu", "pool", "fc", "softmax")}
WEIGHTED = ("conv1", "conv2", "fc")


def layer(name: str, kind: str, reads: str, writes: str, **more: Any) -> dict[str, Any]:
    tensors = {
        "Inputs": [{"Name": "x", "Format/Datatype": reads}],
        "Outputs": [{"Name": "y", "Format/Datatype": writes}],
    }
    return {"Name": name, "LayerType": kind, **tensors, **more}


def split_types(found: dict[str, Any]) -> dict[str, Any]:
    """Return a layer in the form of TensorRT 11, which has two entries for layout and type."""
    for tensor in (*found["Inputs"], *found["Outputs"]):
        text = tensor.pop("Format/Datatype")
        kind = next(word for word in ("Int8", "FP16", "FP32", "Half", "Float") if word in text)
        tensor["Format"] = "Row major linear"
        tensor["Datatype"] = {"FP16": "Half", "FP32": "Float"}.get(kind, kind)
    return found


def both_forms(*arguments: Any, **more: Any) -> list[dict[str, Any]]:
    """Return a layer as written up to TensorRT 10 and since 11."""
    return [layer(*arguments, **more), split_types(layer(*arguments, **more))]


def read(*layers: Any, **times: float) -> list[Any]:
    return read_inspector({"Layers": list(layers)}, nodes=NODES, weighted=WEIGHTED, times=times)


def test_fused_layer_named_by_its_nodes() -> None:
    """Up to 8.x the name joins weights and nodes.

    The weights have a type of their own.
    """
    (found,) = read(
        layer(
            "conv1.weight + q_w + conv1 + add + relu",
            "CaskConvolution",
            INT8,
            INT8,
            Weights={"Type": "Int8", "Count": 9},
        )
    )
    assert found.nodes == ("conv1", "add", "relu")
    assert (found.precision, found.output_precision, found.weighted) == ("int8", "int8", True)


def test_prefixed_weights_of_a_conv_with_a_pool() -> None:
    (found,) = read(
        layer("conv1 + pool", "ConvActPool", INT8, INT8, ConvWeights={"Type": "Int8", "Count": 9})
    )
    assert (found.precision, found.weighted, found.nodes) == ("int8", True, ("conv1", "pool"))


def test_metadata_decides_where_it_is_given() -> None:
    """Since 10 the new compiler's kernels have own names.

    Their nodes are in the metadata.
    """
    (found,) = read(
        layer(
            "__myl_Fc_0", "gemm", "Half", "Half", Metadata="[ONNX Layer: fc]\x1e[ONNX Layer: relu]"
        )
    )
    assert found.nodes == ("fc", "relu")
    assert (found.precision, found.weighted) == ("fp16", True)


def test_int8_input_makes_a_gemm_int8() -> None:
    (found,) = read(layer("__myl_Fc_0", "gemm", "Int8", "Float", Metadata="[ONNX Layer: fc]"))
    assert (found.precision, found.output_precision) == ("int8", "fp32")


@pytest.mark.parametrize(
    ("reads", "precision"), [(FP32, "fp32"), (FP16, "fp16"), (INT8, "int8"), ("Half", "fp16")]
)
def test_int8_weights_compute_as_their_input(reads: str, precision: str) -> None:
    weights = {"Type": "Int8", "Count": 9}
    for found in read(*both_forms("conv1", "CaskConvolution", reads, FP16, Weights=weights)):
        assert (found.precision, found.output_precision) == (precision, "fp16")


def test_int8_weights_under_an_unknown_input_are_unknown() -> None:
    (found,) = read(layer("conv1", "CaskConvolution", "", "", Weights={"Type": "Int8", "Count": 9}))
    assert found.precision == "unknown"


@pytest.mark.parametrize("key", ["Datatype", "DataType", "Format/Datatype", "Format/DataType"])
def test_tensor_type_reads_both_forms(key: str) -> None:
    assert (
        tensor_type({"Name": "x", "Format": "Row major linear FP32 format", key: "Int8"}) == "int8"
    )
    assert tensor_type({"Name": "x", "Format": "Row major linear FP32 format"}) == ""


def test_reformats_are_not_weighted_though_they_name_a_convolution() -> None:
    (found,) = read(
        layer("conv1", "Reformat", "Row major linear FP32", INT8, Metadata="[ONNX Layer: conv1]")
    )
    assert (found.weighted, found.precision) == (False, "int8")


def test_layers_without_weights_count_by_what_they_write() -> None:
    (found,) = read(layer("softmax", "SoftMax", FP32, FP16))
    assert (found.precision, found.weighted) == ("fp16", False)


def test_names_only() -> None:
    """Without detailed verbosity there are only names, no invented precision."""
    description = {"Layers": ["conv1 + relu", "softmax"]}
    found = read_inspector(description, nodes=NODES, weighted=WEIGHTED)
    assert [item.precision for item in found] == ["unknown", "unknown"]
    assert found[0].nodes == ("conv1", "relu")
    assert not is_detailed(description)
    assert is_detailed({"Layers": [layer("softmax", "SoftMax", FP32, FP16)]})


def test_times_are_joined_by_name() -> None:
    found = read(layer("softmax", "SoftMax", FP32, FP16), softmax=0.25)
    assert found[0].time_ms == 0.25


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("Row major Int8 format", "int8"),
        ("Channel major FP16 format where channel % 8 == 0", "fp16"),
        ("Row major linear BFloat16 format", "bf16"),
        ("Row major linear FP32", "fp32"),
        ("FP8 E4M3", "fp8"),
        ("Int32", "int32"),
        ("something new", "unknown"),
    ],
)
def test_types_are_read_from_text(text: str, precision: str) -> None:
    (found,) = read(layer("softmax", "SoftMax", text, text))
    assert found.precision == precision
