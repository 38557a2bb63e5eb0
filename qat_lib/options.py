"""The allowed values of options, as type aliases.

Every alias is a ``Literal``: settings and command line take it as the type of a field or an option.
``get_args`` gives the values, in the order in which messages name them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Backend: TypeAlias = Literal["tensorrt", "openvino", "onnxruntime"]
"""What builds and runs an engine, best first; also what an ONNX file is lowered for.

Each is the name of a module in ``qat_lib.engines``."""

BackendChoice: TypeAlias = Literal["auto", Backend]
"""A backend, or the best one that can be used."""

Cpu: TypeAlias = Literal["vnni", "avx2", "arm"]
"""Kind of CPU by its 8-bit arithmetic: x86 with VNNI or AMX, x86 without, or 64-bit ARM."""

CpuChoice: TypeAlias = Literal["auto", Cpu]
"""A kind of CPU, or that of this machine."""

Framework: TypeAlias = Literal["keras", "torch"]
"""Framework of a model."""

Mode: TypeAlias = Literal["full", "partial"]
"""Whether all layers are quantized or only those that a spec or a case names."""

CalibratorName: TypeAlias = Literal["max", "percentile", "entropy", "mse", "auto"]
"""How a range is chosen from the observed values."""

Rounding: TypeAlias = Literal["nearest", "adaround"]
"""How weights become integers."""

RangePolicy: TypeAlias = Literal["frozen", "ema", "last", "learned"]
"""What training does to the range of an activation."""

WeightRangePolicy: TypeAlias = Literal["current", "frozen", "learned"]
"""What training does to the range of a weight."""

WeightForm: TypeAlias = Literal["int8", "qdq", "int4"]
"""How a quantized weight is stored: INT8 initializer + DQ, FP32 + Q + DQ, or as ``"int8"`` with
INT4 initializers for weights of 4 bits and fewer."""

FloatPrecision: TypeAlias = Literal["fp32", "fp16"]
"""Precision of what is not quantized in an ONNX file."""

EnginePrecision: TypeAlias = Literal["fp32", "fp16", "bf16"]
"""Precision of what is not quantized in an engine."""

Hint: TypeAlias = Literal["latency", "throughput"]
"""What a CPU engine is compiled for: one request at a time, or many."""

Switch: TypeAlias = Literal["auto", "always", "never"]
"""Whether something is done."""
