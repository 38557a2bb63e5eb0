"""Build a TensorRT engine, with version differences from the capability table."""

from __future__ import annotations

from typing import Any

from qat_lib.engines.backend import BuildRequest
from qat_lib.engines.tensorrt import timing_cache
from qat_lib.engines.tensorrt.callbacks import BuildLog, Cancellation, make_progress_monitor
from qat_lib.engines.tensorrt.capabilities import Capabilities
from qat_lib.engines.tensorrt.diagnosis import explain_failed_build, read_parser_errors
from qat_lib.engines.tensorrt.library import make_entry
from qat_lib.errors import ConfigError, EngineBuildError
from qat_lib.support.mappings import map_values


def build_plan(trt: Any, capabilities: Capabilities, request: BuildRequest, log: BuildLog) -> bytes:
    """Return the serialized engine for ``request``.

    Raises:
        BackendUnavailableError: no usable GPU or driver.
        ConfigError: this version does not support the graph's weights or the requested precision.
        EngineBuildError: the graph can't be parsed, the build failed or was cancelled.
    """
    _check(capabilities, request, trt.__version__)
    cancellation = Cancellation(request.cancelled)
    builder, logger = make_entry(trt, "Builder", log)
    flags = sum(
        1 << int(getattr(trt.NetworkDefinitionCreationFlag, name))
        for name in capabilities.network_flags
    )
    network = builder.create_network(flags)
    # TensorRT keeps neither the parser, the owner of the network's weights, nor the monitor alive.
    parser = _parse(trt, capabilities, network, logger, request)
    config = _configure(trt, capabilities, builder, request)
    monitor = None
    if capabilities.progress_monitor:
        monitor = config.progress_monitor = make_progress_monitor(
            trt, request.on_progress, cancellation
        )
    # Last chance without a progress monitor: TensorRT 8.6 can't be interrupted in a build.
    _stop_if(cancellation)
    plan = builder.build_serialized_network(network, config)
    del parser, monitor
    _stop_if(cancellation)
    if plan is None:
        shapes = map_values(str, request.spec.shapes)
        workspace = request.spec.workspace_mib
        raise explain_failed_build(
            log.errors(), {"workspace": workspace or "the whole memory", "shapes": shapes}
        )
    timing_cache.save(config, request.spec.timing_cache)
    return bytes(plan)


def precision_flags(capabilities: Capabilities, request: BuildRequest) -> tuple[str, ...]:
    """Return the builder flags for precision; none in strongly typed versions."""
    if request.graph.weights is not None:
        return capabilities.int8_flags
    return capabilities.fp16_flags if request.spec.float_precision == "fp16" else ()


def _check(capabilities: Capabilities, request: BuildRequest, version: str) -> None:
    weights, precision = request.graph.weights, request.spec.float_precision
    if weights is not None and weights not in capabilities.weights:
        raise ConfigError(
            f"TensorRT {version} takes quantized weights as {' or '.join(capabilities.weights)} "
            f"(FP32 + Q + DQ); {request.onnx} stores them as {weights} (INT8 + DQ). Export with "
            "weights=qdq."
        )
    if capabilities.strongly_typed and precision != "fp32":
        raise ConfigError(
            f"TensorRT {version} takes every type from the ONNX graph, so float_precision must "
            f"be fp32. Received: {precision}. Export the graph with float_precision=fp16 "
            "instead."
        )
    if precision == "bf16":
        raise ConfigError(f"TensorRT {version} has no bf16. Use float_precision fp16 or fp32.")


def _parse(
    trt: Any, capabilities: Capabilities, network: Any, logger: Any, request: BuildRequest
) -> Any:
    """Parse the ONNX file into ``network`` and return the parser, which must outlive the build."""
    parser = trt.OnnxParser(network, logger)
    if parser.parse_from_file(str(request.onnx)):
        return parser
    findings = read_parser_errors(parser, capabilities.parser_names_nodes, request.graph.order)
    listed = "\n".join(f"  {finding}" for finding in findings) or "  no reason given"
    raise EngineBuildError(f"TensorRT {trt.__version__} can't import {request.onnx}:\n{listed}")


def _configure(trt: Any, capabilities: Capabilities, builder: Any, request: BuildRequest) -> Any:
    spec, config = request.spec, builder.create_builder_config()
    if spec.workspace_mib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, spec.workspace_mib * 2**20)
    config.builder_optimization_level = spec.optimization_level
    # Without details the inspector lists names only, and the precision of layers is unknown.
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    for name in precision_flags(capabilities, request):
        config.set_flag(getattr(trt.BuilderFlag, name))
    for name in capabilities.preview_features:
        config.set_preview_feature(getattr(trt.PreviewFeature, name), True)
    if spec.hardware_compatible:
        config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS
    if spec.version_compatible:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    profile = builder.create_optimization_profile()
    for name, shapes in spec.shapes.items():
        sides = map(list, (shapes.minimum, shapes.optimum, shapes.maximum))
        profile.set_shape(name, *map(trt.Dims, sides))
    if config.add_optimization_profile(profile) < 0:
        raise EngineBuildError(
            f"TensorRT refuses the shapes {map_values(str, spec.shapes)}. They must lie within "
            "what the graph allows."
        )
    timing_cache.attach(config, spec.timing_cache)
    return config


def _stop_if(cancellation: Cancellation) -> None:
    if cancellation.interrupted:
        raise KeyboardInterrupt
    if cancellation.requested():
        raise EngineBuildError("The build was cancelled. Nothing was written.")
