"""Write docs/reference/findings.md: each code with the graph that causes it and the fix."""

from __future__ import annotations

import sys
from pathlib import Path

from qat_lib.analysis import CATALOG

TARGET = Path(__file__).parents[1] / "reference" / "findings.md"
HEAD = """# Findings

<!-- Written by docs/tools/findings.py. -->

`qatline analyze` predicts how TensorRT runs a graph, and `qatline verify` compares a graph with its plan. A finding has
a code, the layer, a message and a fix. Errors stop an export and a promotion; warnings cost speed; infos are hints.

The evidence of a rule is documentation of TensorRT (D), layer lists of published engines (E), rules of NVIDIA's tools
(M), or an inference from these (I).
"""
SECTIONS = {
    "V": ("Graph", "Rules of TensorRT's parser and of its INT8 fusions."),
    "Q": ("Plan", "Comparison of a graph with the plan that the model was quantized with."),
    "C": ("File", "Checks of the file as a whole."),
    "H": ("Hints", "Layers around the network that cost time."),
}
DETAILS = {
    "C01": ("`onnx.checker` rejects the file.", "Export the model again."),
    "C02": (
        "The export could not compare the file with its model; the message contains the reason.",
        "Compare both with `check_parity`.",
    ),
    "H1": ("`Pad(0) → Conv`", "Merge the padding into the `pads` attribute of the convolution."),
    "H2": (
        "`input (float32) → Q → DQ → Conv`",
        "Feed INT8 if the client can quantize; otherwise accept one small kernel.",
    ),
    "H3": (
        "`input (NHWC) → Transpose → Conv`",
        "Export with a channels-first input if the client can feed one.",
    ),
    "Q01": (
        "The plan has a quantizer on a tensor; the graph has no Q/DQ pair there.",
        "Enable the quantizer, and export again.",
    ),
    "Q02": (
        "The graph has a Q/DQ pair on a tensor that the plan leaves in float.",
        "Verify with the plan of this model.",
    ),
    "Q03": (
        "The scale of a pair differs from the range of its quantizer.",
        "Export again after the last change of the ranges.",
    ),
    "Q04": (
        "INT8 weights differ from the rounded weights of the model.",
        "Export again, and use the file without requantization by another tool.",
    ),
    "Q05": (
        "A Q without DQ, a DQ without Q, or a reader that skips the pair.",
        "Export again, and use the file without changes by another tool.",
    ),
    "V01": (
        "`QuantizeLinear(x, scale)` with a computed, zero, negative or non-float scale.",
        "Calibrate with data that reach the layer, and freeze the ranges before the export.",
    ),
    "V02": (
        "`QuantizeLinear(x, scale, zero_point=128)`",
        "Quantize symmetrically, with an INT8 zero point of 0.",
    ),
    "V03": (
        "`QuantizeLinear` to UINT8 or INT32.",
        'Quantize with `unsigned=False` and `target="tensorrt"`; keep biases in float.',
    ),
    "V04": (
        "Per-channel scales along an input axis of a weight, or on an activation.",
        "Quantize weights along the output channels, and activations with one scale.",
    ),
    "V05": (
        "`QLinearConv`, `ConvInteger` and other integer operators.",
        "Quantize with Q/DQ pairs; in ONNX Runtime `QuantFormat.QDQ`.",
    ),
    "V06": (
        "Per-channel Q/DQ in opset 12 or older, or scales of another type than the data.",
        "Export with opset 13 or newer, and scales in the type of the data.",
    ),
    "V07": (
        "A graph output behind a Q, computed parameters of a `BatchNormalization`, INT8 weights in TensorRT 8.",
        'Export in inference mode; end the graph with the DQ; export with `weights="qdq"`.',
    ),
    "V08": (
        "`x → Q(0.1) → Conv`, `x → Q(0.2) → Conv`",
        "Use one quantizer for the tensor and all its readers.",
    ),
    "V09": ("`Q(0.1) → DQ → MaxPool → Q(0.2)`", "Share one quantizer between the two tensors."),
    "V10": ("`Conv(DQ(Q(x)), weight in float)`", "Quantize both operands, or neither."),
    "V11": (
        "`Conv` without quantizers in a quantized graph.",
        "Quantize the layer unless it is an intended exclusion.",
    ),
    "V12": (
        "`DQ(weight) → Transpose → MatMul`",
        "Store the weight in the layout that the layer reads.",
    ),
    "V13": (
        "A weighted layer, with its fused operators, without a Q behind: `Conv → Relu → float operator`",
        "Quantize its output, or end it with a fused operator such as a ReLU.",
    ),
    "V14": ("`Conv → Q → DQ → Relu`", "Quantize the output of the activation instead."),
    "V15": ("`Add(Conv(x), y in float) → Relu → Q`", "Quantize the residual operand."),
    "V16": (
        "`Add(Conv(x), DQ(Q(y))) → GlobalAveragePool` without a Q behind the Add.",
        "Quantize the readers of the Add with one scale.",
    ),
    "V17": (
        "`Add(DQ(Q(Conv(x))), DQ(Q(y)))`",
        "Remove the quantizer between the convolution and the Add.",
    ),
    "V18": ("`Mul(DQ(Q(x)), y in float)`", "Quantize all inputs and the output, or none."),
    "V19": (
        "`Q → DQ → AveragePool` with float readers.",
        "Quantize the readers, or remove the quantizer in front.",
    ),
    "V20": ("`Concat(DQ(Q(0.1)), DQ(Q(0.2)))`", "Tie the inputs and the output to one range."),
    "V21": ("`Concat(DQ(Q(x)), y in float)`", "Quantize all inputs in one tied group."),
    "V22": ("`Q → DQ → Softmax`", "Remove the quantizer in front."),
    "V23": (
        "`MatMul → Add(mask) → Q → DQ → Softmax → MatMul`",
        "Remove the quantizers between the two products.",
    ),
    "V24": (
        "`Dense` or `Conv` below the size that gains on GPUs.",
        "Leave the layer in float if that is as fast.",
    ),
    "V25": (
        "`Conv` with 24 channels.",
        "Round the channels of your architecture to a multiple of 16.",
    ),
    "V26": (
        "`ConvTranspose` with one scale per channel, for TensorRT.",
        "Leave the layer in float, or give its weight one scale.",
    ),
    "V27": (
        "Loops and branches, convolutions over one or three dimensions, FP8, INT4.",
        "Measure the layer in INT8 and in float.",
    ),
    "V28": (
        "`Conv(DQ as float32, weight as float16)`",
        "Write the scales in the type of the remaining operands.",
    ),
}


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for letter, (title, meaning) in SECTIONS.items():
        parts.append(f"## {title}\n\n{meaning}\n")
        for code, rule in CATALOG.items():
            if code.startswith(letter):
                graph, fix = DETAILS[code]
                parts.append(
                    f"### {code}\n\n{rule.title[0].upper()}{rule.title[1:]}. "
                    f"*{rule.severity.capitalize()}, evidence {rule.confidence}.*\n\n"
                    f"- Graph: {graph}\n- Fix: {fix}\n"
                )
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")
