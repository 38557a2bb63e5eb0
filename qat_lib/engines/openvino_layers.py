"""Read the layers of a compiled OpenVINO model from its execution graph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from qat_lib.engines.values import EngineLayer

_PRECISIONS = {"u8": "int8", "i8": "int8", "f32": "fp32", "f16": "fp16"}
_WEIGHTED = frozenset(
    {"Convolution", "Deconvolution", "FullyConnected", "MatMul", "RNNCell", "RNNSeq"}
)
_NOT_LAYERS = frozenset({"Const", "Input", "Output"})
# Suffixes of OpenVINO for the parts of a decomposed ONNX node.
_SUFFIX = re.compile(r"(/WithoutBiases|_original|/transpose_[ab]|/Transpose|/fq_weights_\d+)+$")
_TIMED_RUNS = 50


def read_execution_graph(
    compiled: Any, nodes: Mapping[str, str], *, timed: bool
) -> tuple[list[EngineLayer], list[dict[str, str]]]:
    """Return the layers of the execution graph, and its unchanged description."""
    if timed:
        _exercise(compiled)
    layers, raw = [], []
    constants: set[str] = set()  # and what is computed from constants only
    for operation in compiled.get_runtime_model().get_ordered_ops():
        info = {key: value.astype(str) for key, value in operation.get_rt_info().items()}
        sources = [port.get_source_output().get_node() for port in operation.inputs()]
        constant = [node.get_friendly_name() in constants for node in sources]
        is_constant = all(constant) if constant else info["layerType"] == "Const"
        if is_constant:
            constants.add(operation.get_friendly_name())
        if info["layerType"] in _NOT_LAYERS or is_constant:
            continue
        raw.append({"name": operation.get_friendly_name(), **info})
        layers.append(_layer(operation.get_friendly_name(), info, constant, nodes, timed))
    return layers, raw


def _layer(
    name: str, info: Mapping[str, str], constant: list[bool], nodes: Mapping[str, str], timed: bool
) -> EngineLayer:
    known: dict[str, None] = {}
    for part in info["originalLayersNames"].split(","):
        fused = _SUFFIX.sub("", part)
        if fused in nodes or fused in nodes.values():
            known[nodes.get(fused, fused)] = None
    time_us = info["execTimeMcs"]
    precision, written = info["runtimePrecision"], info["outputPrecisions"].split(",")[0]
    return EngineLayer(
        name=name,
        kind=info["layerType"],
        nodes=tuple(known),
        precision=_PRECISIONS.get(precision, precision),
        # A MatMul of two activations has no constant second input.
        weighted=info["layerType"] in _WEIGHTED and any(constant[1:2]),
        output_precision=_PRECISIONS.get(written, written),
        time_ms=int(time_us) / 1e3 if timed and time_us.isdigit() else None,
        kernel=info["primitiveType"],
    )


def _exercise(compiled: Any) -> None:
    """Run some requests, to measure the layer times of the execution graph."""
    generator = np.random.default_rng(0)
    request = compiled.create_infer_request()
    batch = {}
    for index, port in enumerate(compiled.inputs):
        shape = port.get_partial_shape().get_min_shape()
        dtype = port.get_element_type().to_dtype()
        batch[index] = generator.standard_normal(tuple(shape)).astype(dtype)
    for _ in range(_TIMED_RUNS):
        request.infer(batch)
