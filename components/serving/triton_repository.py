"""Model repositories of Triton Inference Server."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, cast

from qat_lib.engines.manifest import EngineManifest
from qat_lib.errors import ConfigError
from qatline.components.client.client import ANSWER
from qatline.components.serving.package import MODELS, VERSION, ServedModel, write_client

TENSORRT_OF_IMAGE = {
    "24.04": "8.6.3",
    "24.05": "10.0.1",
    "24.06": "10.1.0",
    "24.07": "10.2.0",
    "24.08": "10.3.0",
    "24.09": "10.4.0",
    "24.10": "10.5.0",
    "24.11": "10.6.0",
    "24.12": "10.7.0",
    "25.01": "10.8.0",
    "25.02": "10.8.0",
    "25.03": "10.9.0",
    "25.04": "10.9.0",
    "25.05": "10.10.0",
    "25.06": "10.11.0",
    "25.08": "10.13.2",
    "25.09": "10.13.3",
    "25.10": "10.13.3",
}
"""TensorRT of the images ``nvcr.io/nvidia/tritonserver:<release>-py3``.

Not checked against NVIDIA's Frameworks Support Matrix; images that are missing here are not refused.
"""

REPOSITORY = "nvcr.io/nvidia/tritonserver"
_FILES = {"tensorrt": "model.plan", "onnxruntime": "model.onnx", "openvino": "model.xml"}
# Requests that wait at most, as for an engine.
_MOST_WAITING = 256


def choose_image(image: str | None, manifest: EngineManifest | None) -> str:
    """Return the server's image; of a TensorRT engine the newest one with its TensorRT.

    Args:
        image: the stated image; None to choose one.
        manifest: manifest of a TensorRT engine; None for models of other backends.

    Raises:
        ConfigError: the image has another TensorRT than the engine, or none has it.
    """
    if manifest is None:
        return image or f"{REPOSITORY}:{max(TENSORRT_OF_IMAGE)}-py3"
    built = ".".join(manifest.backend_version.split(".")[:3])
    fitting = [tag for tag, version in TENSORRT_OF_IMAGE.items() if _runs(version, built, manifest)]
    if image is None:
        if not fitting:
            raise ConfigError(
                f"Expected an engine of a TensorRT that an image of Triton carries "
                f"({', '.join(dict.fromkeys(TENSORRT_OF_IMAGE.values()))}). Received: TensorRT "
                f"{built}. State the image that carries it with --image, or build the engine again."
            )
        return f"{REPOSITORY}:{fitting[-1]}-py3"
    # Images missing in the table are accepted: they may be newer than it.
    tag = image.rpartition(":")[2].removesuffix("-py3")
    if tag in TENSORRT_OF_IMAGE and tag not in fitting:
        advice = f"with {REPOSITORY}:{fitting[-1]}-py3" if fitting else "after a new build"
        raise ConfigError(
            f"{image} carries TensorRT {TENSORRT_OF_IMAGE[tag]}, the engine was built with "
            f"{built}: it would not load. It runs {advice}."
        )
    return image


def _runs(version: str, built: str, manifest: EngineManifest) -> bool:
    if not manifest.spec.get("version_compatible"):
        return version == built
    ours, theirs = (tuple(map(int, each.split("."))) for each in (version, built))
    return ours[0] == theirs[0] and ours >= theirs


def write_repository(
    folder: Path, model: ServedModel, *, backend: str, raw: bool, max_batch_size: int
) -> ServedModel:
    """Write the configurations of a model with its file in ``models/<name>/1/``.

    Args:
        folder: folder of the package.
        model: the model.
        backend: ``tensorrt``, ``onnxruntime``, ``openvino``, or ``python`` for ONNX Runtime in
            Python.
        raw: whether to add an ensemble ``<name>_raw`` that takes raw data and returns answers.
        max_batch_size: largest batch of models with an open batch.

    Returns:
        The model, with the name that clients ask for.

    Raises:
        ConfigError: the model records no preprocessing or decoding for the ensemble.
    """
    if raw and (model.preprocessing is None or model.decoding is None):
        raise ConfigError(
            "Expected a model that records its preprocessing and decoding, for a server that runs "
            "them. Received: a model without. Leave --raw out; clients then send prepared inputs."
        )
    # Triton stacks requests only along an open batch axis of all inputs and outputs; 0 means none.
    batched = all(each["shape"][:1] == [-1] for each in (*model.inputs, *model.outputs))
    size = max_batch_size if batched else 0
    outputs = list(model.outputs)
    config = _config(model.name, model.inputs, outputs, size)
    if backend == "python":
        _python_part(folder, config, model, "compute")
    else:
        config["platform" if backend == "tensorrt" else "backend"] = (
            "tensorrt_plan" if backend == "tensorrt" else backend
        )
        config["default_model_filename"] = _FILES[backend]
        kind = "KIND_GPU" if backend == "tensorrt" else "KIND_CPU"
        config["instance_group"] = [{"kind": kind, "count": 1}]
    if size > 1:
        queue = {"max_queue_size": _MOST_WAITING}
        config["dynamic_batching"] = {"default_queue_policy": queue}
    if (model.decoding or {}).get("kind") == "classification":
        config["output"][0]["label_filename"] = "labels.txt"
        labels = "".join(f"{' '.join(name.split())}\n" for name in model.classes)
        (folder / MODELS / model.name / "labels.txt").write_text(labels, encoding="utf-8")
    _write(folder, config)
    return _with_ensemble(folder, model, size) if raw else model


def _with_ensemble(folder: Path, model: ServedModel, size: int) -> ServedModel:
    """Write preprocessing, decoding and the ensemble of both with the model."""
    raw_inputs = model.raw_inputs
    samples = model.outputs[0]["shape"][0]
    answer = {"name": ANSWER, "datatype": "BYTES", "shape": [samples, 1]}
    before, after = f"{model.name}_prepare", f"{model.name}_decode"
    served = replace(model, serves=f"{model.name}_raw")
    for name, part, inputs, outputs in (
        (before, "prepare", raw_inputs, model.inputs),
        (after, "decode", model.outputs, [answer]),
    ):
        config = _config(name, inputs, outputs, size)
        _python_part(folder, config, served, part)
        _write(folder, config)
    # The answer alone: Triton 2.51 fails on requests of a part of an ensemble's outputs where
    # another step reads the rest.
    ensemble = _config(served.serves, raw_inputs, [answer], size)
    names = [each["name"] for each in model.inputs]
    # Tensors inside the ensemble must not have the names of its inputs.
    inner = {name: f"{name} prepared" for name in names}
    plain = {each["name"]: each["name"] for each in model.outputs}
    steps = (
        (before, {name: name for name in names}, inner),
        (model.name, inner, plain),
        (after, plain, {ANSWER: ANSWER}),
    )
    ensemble["platform"] = "ensemble"
    ensemble["ensemble_scheduling"] = {
        "step": [
            {"model_name": name, "model_version": -1, "input_map": inputs, "output_map": outputs}
            for name, inputs, outputs in steps
        ]
    }
    (folder / MODELS / served.serves / VERSION).mkdir(parents=True)
    # Object stores have no empty folders.
    (folder / MODELS / served.serves / VERSION / ".keep").touch()
    _write(folder, ensemble)
    return served


def _config(
    name: str,
    inputs: Sequence[Mapping[str, Any]],
    outputs: Sequence[Mapping[str, Any]],
    size: int,
) -> dict[str, Any]:
    """Return the part of a configuration that all models have."""
    start = 1 if size else 0
    input_, output = (
        [
            {
                "name": each["name"],
                "data_type": f"TYPE_{'STRING' if each['datatype'] == 'BYTES' else each['datatype']}",
                "dims": each["shape"][start:] or [1],
                # A sample may be a single number: its tensor then has the batch only.
                **({} if each["shape"][start:] else {"reshape": {"shape": []}}),
            }
            for each in infos
        ]
        for infos in (inputs, outputs)
    )
    return {"name": name, "max_batch_size": size, "input": input_, "output": output}


def _python_part(folder: Path, config: dict[str, Any], model: ServedModel, part: str) -> None:
    """Complete the configuration of a part in Python, and write its files."""
    config["backend"] = "python"
    config["parameters"] = {"part": {"string_value": part}}
    config["instance_group"] = [{"kind": "KIND_CPU", "count": 1}]
    place = folder / MODELS / config["name"] / VERSION
    place.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(__file__).parent / "packaged" / "model.py", place / "model.py")
    write_client(place)
    (place / "client.py").unlink()
    text = json.dumps(asdict(model), indent=1, sort_keys=True)
    (place / "model.json").write_text(text + "\n", encoding="utf-8")


def config_classes() -> Any:
    """Return the module with Triton's classes of a configuration.

    Loaded without its package: other classes there have the same Protobuf names as KServe's, and
    a process can register a name only once.
    """
    name = "tritonclient.grpc.model_config_pb2"
    if name not in sys.modules:
        import tritonclient

        (place,) = tritonclient.__path__
        file = Path(place) / "grpc" / "model_config_pb2.py"
        spec = cast("ModuleSpec", spec_from_file_location(name, file))
        sys.modules[name] = module_from_spec(spec)
        cast("Loader", spec.loader).exec_module(sys.modules[name])
    return sys.modules[name]


def _write(folder: Path, config: Mapping[str, Any]) -> None:
    # Through Triton's own classes: they check names and types, and escape texts.
    from google.protobuf import json_format, text_format  # type: ignore[import-untyped]

    message = json_format.ParseDict(config, config_classes().ModelConfig())
    path = folder / MODELS / config["name"] / "config.pbtxt"
    path.write_text(text_format.MessageToString(message), encoding="utf-8")
