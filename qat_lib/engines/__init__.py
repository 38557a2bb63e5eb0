"""Engines: one interface to TensorRT, OpenVINO and ONNX Runtime.

Imports neither TensorFlow nor Keras.

from qat_lib.engines import BuildSpec, build_engine, load_engine, parse_shapes

spec = BuildSpec(shapes=parse_shapes("input:1x3x224x224,8x...,32x..."))
artifact = build_engine("model.onnx", spec, output="model.engine")
print(artifact.manifest.precision)  # INT8 layers of all weighted layers, reported by the backend
with load_engine("model.engine") as engine:
    logits = engine.infer(batch)["logits"]
    print(engine.benchmark(batch_size=1).p99_ms)
"""

from qat_lib.engines.backend import available_backends, choose_backend, get_backend
from qat_lib.engines.benchmark import benchmark_together
from qat_lib.engines.build import EngineArtifact, build_engine
from qat_lib.engines.engine import Engine
from qat_lib.engines.environment import cpu_kind
from qat_lib.engines.load import load_engine
from qat_lib.engines.manifest import EngineManifest, layers_path, manifest_path
from qat_lib.engines.manifest_file import read_manifest
from qat_lib.engines.request_pool import RequestLimits
from qat_lib.engines.spec import BuildSpec, ShapeProfile, parse_properties, parse_shapes, parse_size
from qat_lib.engines.values import EngineLayer, Latency, Percentiles, PrecisionSummary, TensorInfo

__all__ = [
    "BuildSpec",
    "Engine",
    "EngineArtifact",
    "EngineLayer",
    "EngineManifest",
    "Latency",
    "Percentiles",
    "PrecisionSummary",
    "RequestLimits",
    "ShapeProfile",
    "TensorInfo",
    "available_backends",
    "benchmark_together",
    "build_engine",
    "choose_backend",
    "cpu_kind",
    "get_backend",
    "layers_path",
    "load_engine",
    "manifest_path",
    "parse_properties",
    "parse_shapes",
    "parse_size",
    "read_manifest",
]
