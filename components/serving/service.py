"""A package with its loaded engine: raw data in, outputs and answers out."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.engines import BuildSpec, Engine, RequestLimits, build_engine, load_engine
from qat_lib.errors import ConfigError
from qat_lib.preprocessing import AnyPreprocessing, PreprocessingByInput, read_preprocessing
from qatline.components.client.client import ANSWER
from qatline.components.client.decoding import answers
from qatline.components.evaluation.inference import EngineRunner
from qatline.components.serving.batching import Arrays
from qatline.components.serving.package import Package


@dataclass(frozen=True, kw_only=True)
class Service:
    """A package with its loaded engine.

    Attributes:
        package: the package.
        engine: the engine.
        runner: the engine for data with the channels in the last axis.
    """

    package: Package
    engine: Engine
    runner: EngineRunner

    @classmethod
    def open(cls, package: Package) -> Service:
        """Load the engine, or build it from the package's ONNX file, and run it once.

        Raises:
            EngineError: it can't be loaded or built here.
            ConfigError: it is the package of another server.
        """
        if package.target != "plain":
            raise ConfigError(
                f"Expected a package for qatline serve (--target plain). Received: {package.path}, "
                f"which is for {package.target}."
            )
        file = package.path / package.file
        limits = RequestLimits(timeout=3600.0)  # the batcher bounds the queue
        if file.suffix == ".onnx":
            backend: Any = package.backend
            with tempfile.TemporaryDirectory() as place:
                engine_file = Path(place) / "model.engine"
                build_engine(file, BuildSpec(backend=backend), output=engine_file)
                engine = load_engine(engine_file, limits=limits)
        else:
            engine = load_engine(file, limits=limits)
        engine.infer(engine.random_batch(max(1, engine.batch_sizes[0])))
        inputs = package.model.raw_inputs
        shapes = {each["name"]: tuple(each["shape"][1:]) for each in inputs}
        return cls(package=package, engine=engine, runner=EngineRunner(engine, shapes, raw=True))

    @cached_property
    def inputs(self) -> list[dict[str, Any]]:
        """Name, data type and shape of the raw inputs."""
        # The runner takes any number of samples.
        return [
            {**each, "shape": [-1, *each["shape"][1:]]} for each in self.package.model.raw_inputs
        ]

    @cached_property
    def outputs(self) -> list[dict[str, Any]]:
        """Name, data type and shape of the outputs, and of the answer."""
        shapes = self.runner.output_shapes
        found = [
            {**_tensor(each), "shape": [-1, *(size or -1 for size in shapes[each["name"]])]}
            for each in self.package.model.outputs
        ]
        if self.package.model.decoding:
            found.append({"name": ANSWER, "datatype": "BYTES", "shape": [-1]})
        return found

    @cached_property
    def _form(self) -> AnyPreprocessing | None:
        """Preprocessing in front of the engine."""
        model = self.package.model
        if model.preprocessing is None or model.preprocessing_embedded:
            return None
        return read_preprocessing(model.preprocessing)

    def compute(self, arrays: Arrays, wanted: frozenset[str]) -> dict[str, Any]:
        """Return the wanted outputs for raw inputs by name."""
        model = self.package.model
        batch: Any = dict(arrays)
        if self._form is not None:
            several = isinstance(self._form, PreprocessingByInput)
            batch = self._form.apply(batch if several else next(iter(batch.values())))
        found = self.runner(batch)
        outputs = found if isinstance(found, Mapping) else {self.engine.outputs[0].name: found}
        outputs = dict(outputs)
        if ANSWER in wanted and model.decoding:
            texts = [json.dumps(each) for each in answers(model.decoding, outputs)]
            outputs[ANSWER] = np.array(texts, dtype=object)
        return outputs


def _tensor(each: Mapping[str, Any]) -> dict[str, Any]:
    return {key: each[key] for key in ("name", "datatype", "shape")}
