"""Commands on engines: build one, measure it, check it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from qat_lib.options import EnginePrecision, Hint
from qatline.pipelines.cli.options import (
    BackendOption,
    EngineFile,
    JsonOption,
    OnnxFile,
    print_json,
)


def build(
    model: OnnxFile,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Engine file.", show_default=False)
    ] = None,
    backend: BackendOption = "auto",
    shapes: Annotated[
        str,
        typer.Option(
            help="NAME:MIN,OPT,MAX, such as x:1x3x64x64,8x3x64x64,32x3x64x64.", show_default=False
        ),
    ] = "",
    max_batch_size: Annotated[
        int, typer.Option(min=1, help="Maximum batch size of inputs without --shapes.")
    ] = 32,
    float_precision: Annotated[
        EnginePrecision, typer.Option(help="Precision of non-quantized layers.")
    ] = "fp32",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 = all.")] = 0,
    hint: Annotated[
        Hint, typer.Option(help="OpenVINO: optimize for latency or throughput.")
    ] = "latency",
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="NAME=VALUE",
            help="Property of the OpenVINO CPU plugin.",
            show_default=False,
        ),
    ] = None,
    workspace: Annotated[
        str, typer.Option(help="TensorRT workspace size, such as 4GiB.", show_default=False)
    ] = "",
    optimization_level: Annotated[
        int, typer.Option(min=0, max=5, help="0: fastest build; 5: fastest engine.")
    ] = 3,
    timing_cache: Annotated[
        Path | None, typer.Option(help="TensorRT timing cache file.", show_default=False)
    ] = None,
    hardware_compatible: Annotated[
        bool,
        typer.Option(
            "--hardware-compatible", help="TensorRT: portable across GPUs from Ampere on."
        ),
    ] = False,
    version_compatible: Annotated[
        bool,
        typer.Option("--version-compatible", help="TensorRT: portable to later minor versions."),
    ] = False,
    layer_timing: Annotated[
        bool, typer.Option("--layer-timing", help="Keep the data for per-layer timing.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify/--no-verify", help="Compare with ONNX Runtime before writing the engine."
        ),
    ] = True,
    json_: JsonOption = False,
) -> None:
    """Build an engine from an ONNX file."""
    from qat_lib import engines
    from qatline.pipelines.cli import model_views
    from qatline.pipelines.cli.build_progress import build_progress

    spec = engines.BuildSpec(
        backend=backend,
        shapes=engines.parse_shapes(shapes) if shapes else {},
        max_batch_size=max_batch_size,
        float_precision=float_precision,
        threads=threads,
        hint=hint,
        properties=engines.parse_properties(properties or []),
        workspace_mib=engines.parse_size(workspace) // 2**20 if workspace else None,
        optimization_level=optimization_level,
        timing_cache=timing_cache,
        hardware_compatible=hardware_compatible,
        version_compatible=version_compatible,
        profile=layer_timing,
    )
    with build_progress() as on_progress:
        artifact = engines.build_engine(
            model, spec, output=output, verify=verify, on_progress=on_progress
        )
    if json_:
        print_json(
            {
                "path": str(artifact.path),
                **json.loads(artifact.manifest.to_json()),
                "warnings": list(artifact.warnings),
            }
        )
    else:
        model_views.show_engine(artifact)


def bench(
    engine: EngineFile,
    batch_size: Annotated[
        list[int] | None, typer.Option(min=1, help="Batch size (repeatable).", show_default="1")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.01, max=3600, help="Seconds per batch size.")
    ] = 2.0,
    layers: Annotated[bool, typer.Option("--layers", help="Also time each layer.")] = False,
    json_: JsonOption = False,
) -> None:
    """Measure latency and throughput of an engine."""
    from qat_lib.engines import load_engine
    from qatline.pipelines.cli import model_views

    with load_engine(engine) as loaded:
        latencies = [
            loaded.benchmark(batch_size=size, seconds=seconds) for size in batch_size or [1]
        ]
        timed = loaded.layers(timed=True) if layers else []
        if json_:
            content = {"latencies": [each.to_dict() for each in latencies]}
            print_json(
                {**content, "layers": [each.to_dict() for each in timed]} if layers else content
            )
        else:
            model_views.show_latencies(loaded.manifest, latencies, timed)


def check(
    engine: EngineFile,
    onnx: Annotated[Path, typer.Option(help="ONNX file that the engine was built from.")],
    data: Annotated[
        Path | None,
        typer.Option(help=".npy of real inputs, as the engine takes them.", show_default=False),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Number of real inputs (first N).")] = 256,
    requests: Annotated[int, typer.Option(min=0, help="Additional random requests.")] = 8,
    layers: Annotated[
        bool,
        typer.Option("--layers", help="Compare every layer (builds the graph once more)."),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Compare an engine's answers with ONNX Runtime's, without optimizations.

    Ends with exit code 1, and names the first layer that departs, where they differ too much.
    """
    from dataclasses import asdict

    from qat_lib.engines.check import check_engine
    from qat_lib.errors import ConfigError, EngineLoadError
    from qatline.pipelines.cli import model_views
    from qatline.pipelines.cli.build_progress import build_progress
    from qatline.pipelines.cli.data_files import first_inputs

    if data is None and not requests:
        raise ConfigError("Expected --data, or --requests of 1 or more. Received neither.")
    inputs = None if data is None else first_inputs(model_views.read_inputs(data), samples)
    with build_progress() as on_progress:
        found = check_engine(
            engine,
            onnx,
            requests=requests,
            inputs=inputs,
            layers="always" if layers else "failed",
            on_progress=on_progress,
        )
    if found.largest_difference is None:
        raise EngineLoadError(found.message)
    if json_:
        print_json(asdict(found))
    else:
        model_views.show_check(found)
    if not found.passed:
        raise typer.Exit(1)
