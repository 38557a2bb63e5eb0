"""The small classifier as an engine, with raw images and its outputs for them."""

from __future__ import annotations

import numpy as np
import pytest
from served_classifier import FORM, write_graph

from qat_lib.engines import BuildSpec, build_engine, load_engine
from qat_lib.preprocessing import read_preprocessing
from qatline.components.serving.sources import ModelSource, file_source


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    """The classifier's engine."""
    graph = write_graph(tmp_path_factory.mktemp("model") / "linear.onnx")
    artifact = build_engine(graph, BuildSpec(backend="openvino", max_batch_size=16))
    return file_source(artifact.path)


@pytest.fixture(scope="session")
def samples() -> np.ndarray:
    """Raw images."""
    return np.random.default_rng(1).integers(0, 17, (12, 8, 8, 1)).astype(np.uint8)


@pytest.fixture(scope="session")
def logits(source: ModelSource, samples: np.ndarray) -> np.ndarray:
    """Outputs of the engine for ``samples``."""
    assert source.engine is not None
    with load_engine(source.engine) as engine:
        prepared = read_preprocessing(FORM).apply(samples)
        return engine.infer_many(np.ascontiguousarray(np.moveaxis(prepared, -1, 1)))["logits"]
