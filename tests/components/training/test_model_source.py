"""Models that a config names: inputs, outputs and probabilities."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest
from keras import layers

from qat_lib import quantize_model
from qat_lib.errors import ConfigError, UnsupportedModelError
from qatline.components.settings import ModelSettings
from qatline.components.tasks import Task, task_for
from qatline.components.training.model_source import check_model, last_activation, open_model


def classifier(classes: int) -> Task:
    """Return the classification of some classes."""
    return task_for("classification", classes=list(map(str, range(classes))))


def network(
    shape: tuple[int | None, ...] = (4, 4, 1), classes: int = 3, activation: Any = None
) -> keras.Model:
    x = keras.Input(shape)
    y = layers.GlobalAveragePooling2D()(layers.Conv2D(2, 1)(x))
    return keras.Model(x, layers.Dense(classes, activation=activation, name="head")(y), name="net")


def test_check_model_takes_a_model_that_fits() -> None:
    check_model(network(), (4, 4, 1), classifier(3))
    check_model(network((None, None, 1)), (4, 4, 1), classifier(3))


@pytest.mark.parametrize("shape", [(5, 4, 1), (4, 5, 1), (4, 4, 3), (3, 3, 1)])
def test_check_model_refuses_images_of_another_shape(shape: tuple[int, int, int]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"expects images of shape \(4, 4, 1\)"):
        check_model(network(), shape, classifier(3))


def test_check_model_refuses_inputs_that_are_no_images() -> None:
    x = keras.Input((4,))
    with pytest.raises(UnsupportedModelError, match=r"expects images of shape \(4,\)"):
        check_model(keras.Model(x, layers.Dense(3)(x)), (4, 4, 1), classifier(3))


@pytest.mark.parametrize("classes", [2, 4])
def test_check_model_refuses_another_number_of_classes(classes: int) -> None:
    with pytest.raises(
        UnsupportedModelError, match=rf"outputs of shape \(3,\), but the data has {classes} classes"
    ):
        check_model(network(), (4, 4, 1), classifier(classes))


def test_check_model_refuses_outputs_of_two_axes() -> None:
    x = keras.Input((4, 4, 1))
    model = keras.Model(x, layers.Reshape((4, 4))(x))
    with pytest.raises(UnsupportedModelError, match=r"outputs of shape \(4, 4\)"):
        check_model(model, (4, 4, 1), classifier(4))


@pytest.mark.parametrize(("inputs", "outputs"), [(2, 1), (1, 2), (2, 2)])
def test_check_model_refuses_several_inputs_or_outputs(inputs: int, outputs: int) -> None:
    xs = [keras.Input((4, 4, 1)) for _ in range(inputs)]
    y = layers.Flatten()(xs[0] if inputs == 1 else layers.Add()(xs))
    model = keras.Model(xs, [layers.Dense(3)(y) for _ in range(outputs)])
    with pytest.raises(UnsupportedModelError, match="has 2"):
        check_model(model, (4, 4, 1), classifier(3))


def test_last_activation_is_that_of_the_last_layer() -> None:
    x = keras.Input((4, 4, 1))
    body = network()
    assert last_activation(body) != "softmax"
    assert last_activation(keras.Model(x, layers.Identity()(x))) != "softmax"
    assert last_activation(network(activation="softmax")) == "softmax"
    assert last_activation(network(activation="relu")) != "softmax"
    assert last_activation(keras.Model(x, layers.Softmax()(body(x)))) == "softmax"
    assert last_activation(keras.Model(x, layers.Activation("softmax")(network()(x)))) == "softmax"


def test_last_activation_looks_into_a_wrapper() -> None:
    """And past the Identity behind it, which keeps the name of the output."""
    assert last_activation(quantize_model(network(activation="softmax"))) == "softmax"
    assert last_activation(quantize_model(network())) != "softmax"


def users(monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    monkeypatch.setitem(sys.modules, "user_models_a", SimpleNamespace(build=function))


def test_open_model_hands_a_users_function_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []

    def plain(input_shape: Any, *, width: int = 1) -> keras.Model:
        taken.append((input_shape, width))
        return network()

    def everything(**options: Any) -> keras.Model:
        taken.append(options)
        return network()

    settings = ModelSettings(name="user_models_a:build", options={"width": 2})
    users(monkeypatch, plain)
    model, trained = open_model(settings, (4, 4, 1), classifier(3))
    assert (model.name, trained) == ("net", False)
    users(monkeypatch, everything)
    open_model(settings, (4, 4, 1), classifier(3))
    assert taken == [((4, 4, 1), 2), {"input_shape": (4, 4, 1), "classes": 3, "width": 2}]
    users(monkeypatch, lambda: network())
    with pytest.raises(ConfigError, match="width"):  # an option that it does not take is told
        open_model(settings, (4, 4, 1), classifier(3))


@pytest.mark.parametrize("said", [None, True, False])
def test_open_model_takes_a_file_for_trained_unless_told_otherwise(
    tmp_path: Path, said: bool | None
) -> None:
    network().save(tmp_path / "a.keras")
    settings = ModelSettings(name=str(tmp_path / "a.keras"), trained=said)
    assert open_model(settings, (4, 4, 1), classifier(3))[1] is (said is not False)
    with pytest.raises(UnsupportedModelError, match="classes"):
        open_model(settings, (4, 4, 1), classifier(4))


@pytest.mark.parametrize("said", [None, True, False])
def test_open_model_takes_given_weights_for_trained_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, said: bool | None
) -> None:
    loaded: list[Any] = []
    monkeypatch.setattr(
        "qat_lib.models.weights.load_weights", lambda model, path: loaded.append((model.name, path))
    )
    users(monkeypatch, lambda: network())
    settings = ModelSettings(name="user_models_a:build", weights="a.npz", trained=said)
    assert open_model(settings, (4, 4, 1), classifier(3))[1] is (said is not False)
    assert loaded == [("net", "a.npz")]


class Applications:
    """``keras.applications`` with one network, that says what it was built with."""

    def __init__(self) -> None:
        self.built: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.SomeNet = self.build
        self.some_module = "no network"

    def build(self, **options: Any) -> keras.Model:
        self.built.append(options)
        if self.error is not None:
            raise self.error
        x = keras.Input(options["input_shape"])
        y = layers.GlobalAveragePooling2D()(x)
        return keras.Model(
            x,
            y if options.get("include_top") is False else layers.Dense(options["classes"])(y),
            name="some",
        )


@pytest.fixture
def applications(monkeypatch: pytest.MonkeyPatch) -> Applications:
    made = Applications()
    monkeypatch.setattr(keras, "applications", made)
    return made


def application(
    applications: Applications, classes: int, **settings: Any
) -> tuple[keras.Model, bool]:
    applications.built.clear()
    return open_model(
        ModelSettings(name="keras.applications:SomeNet", **settings), (4, 4, 3), classifier(classes)
    )


def test_open_model_builds_an_application_without_weights(applications: Applications) -> None:
    model, trained = application(applications, 5, options={"alpha": 0.5})
    assert applications.built == [
        {"weights": None, "classes": 5, "input_shape": (4, 4, 3), "alpha": 0.5}
    ]
    assert (model.output_shape, trained) == ((None, 5), False)


@pytest.mark.parametrize("classes", [5, 999, 1000, 1001])
def test_open_model_gives_imagenet_a_new_head_for_other_classes(
    applications: Applications, classes: int
) -> None:
    model, trained = application(applications, classes, weights="imagenet")
    whole = {"weights": "imagenet", "classes": classes, "input_shape": (4, 4, 3)}
    assert applications.built == [
        whole if classes == 1000 else {**whole, "include_top": False, "pooling": "avg"}
    ]
    assert (model.name, model.output_shape, trained) == ("some", (None, classes), False)
    assert (model.layers[-1].name == "logits") is (classes != 1000)


def test_open_model_loads_an_applications_own_weights_once(
    applications: Applications, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Any] = []
    monkeypatch.setattr(
        "qat_lib.models.weights.load_weights", lambda model, path: loaded.append(path)
    )
    assert not application(applications, 5, weights="a.npz")[1]
    assert applications.built[0]["weights"] is None
    assert loaded == ["a.npz"]
    application(applications, 5)
    application(applications, 5, weights="imagenet")
    application(applications, 5, weights="z.npz")
    assert loaded == ["a.npz", "z.npz"]
    assert applications.built[0]["weights"] is None


@pytest.mark.parametrize("error", [TypeError("no"), ValueError("no"), OSError("no")])
def test_open_model_tells_what_an_application_refuses(
    applications: Applications, error: Exception
) -> None:
    applications.error = error
    with pytest.raises(ConfigError, match=r"SomeNet can't be built for \(4, 4, 3\): no"):
        application(applications, 5)


@pytest.mark.parametrize("name", ["NoNet", "some_module"])
def test_open_model_lists_the_applications(applications: Applications, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"has no '{name}'\. It has: SomeNet\."):
        open_model(ModelSettings(name=f"keras.applications:{name}"), (4, 4, 3), classifier(5))
