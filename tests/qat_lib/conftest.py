"""A network of all common layers, quantized and exported once."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def images():
    return np.random.default_rng(3).uniform(-1, 1, (24, 12, 12, 3)).astype(np.float32)


@pytest.fixture(scope="session")
def network():
    keras = pytest.importorskip("keras")
    from export_network import build_network, stir

    keras.utils.set_random_seed(0)
    model = build_network()
    stir(model, np.random.default_rng(4))
    return model


@pytest.fixture(scope="session")
def plan(network):
    import qat_lib

    return qat_lib.plan_quantization(network, custom_qdq_cases=[qat_lib.TensorRTQDQCase()])


@pytest.fixture(scope="session")
def quantized(network, plan, images):
    import qat_lib

    model = qat_lib.apply_plan(network, plan)
    qat_lib.calibrate(model, images, method="max")
    return model


@pytest.fixture(scope="session")
def exported(quantized, plan, tmp_path_factory):
    import qat_lib

    path = tmp_path_factory.mktemp("onnx") / "network.onnx"
    qat_lib.export_onnx(quantized, path, plan=plan, metadata={"classes": ["a", "b", "c", "d", "e"]})
    return path
