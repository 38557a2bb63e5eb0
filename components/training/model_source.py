"""Sources of Keras models.

Supported are reference networks, keras.applications, the user's own functions, and files.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from qat_lib.errors import ConfigError, UnsupportedModelError
from qatline.components.settings import ModelSettings
from qatline.components.store.fingerprints import user_code_digest
from qatline.components.support.user_code import call_with, import_callable
from qatline.components.tasks.task import Task
from qatline.components.training.framework import Shapes

APPLICATIONS = "keras.applications:"
_FRAMEWORKS = frozenset({"keras", "keras_hub", "keras_cv", "keras_nlp", "qat_lib", "tensorflow"})


def open_model(settings: ModelSettings, shapes: Shapes, task: Task) -> tuple[Any, bool]:
    """Return the model selected by ``settings``, and whether it is already trained.

    Args:
        settings: the model section.
        shapes: shape of a sample of the only input, or of each of several by name.
        task: meaning of its outputs.

    Raises:
        ConfigError: the name, its options or its weights are wrong.
        UnsupportedModelError: the model does not fit the data, is subclassed, or cannot be loaded
            safely.
    """
    trained = settings.name.endswith(".keras")
    model = build_model(settings, shapes, task, pretrained=settings.weights == "imagenet")
    check_model(model, shapes, task)
    is_application = settings.name.startswith(APPLICATIONS)
    if settings.weights and not (is_application and settings.weights == "imagenet"):
        from qat_lib.models.weights import load_weights

        load_weights(model, settings.weights)
        trained = trained or not is_application
    return model, trained if settings.trained is None else settings.trained


def build_model(
    settings: ModelSettings, shapes: Shapes, task: Task, *, pretrained: bool = False
) -> Any:
    """Return the model selected by ``settings``, unchecked and without a weights file.

    Args:
        settings: the model section.
        shapes: shape of a sample of the only input, or of each of several by name.
        task: meaning of its outputs.
        pretrained: whether a model of keras.applications gets its ImageNet weights, which may be
            downloaded.

    Raises:
        ConfigError, UnsupportedModelError: as in ``open_model``.
    """
    if settings.name.endswith(".keras"):
        from qat_lib import load_model

        return load_model(settings.name)
    if ":" in settings.name and not settings.name.startswith(APPLICATIONS):
        return _user_model(settings, shapes, task)
    if isinstance(shapes, Mapping) or len(task.output_shape) != 1:
        raise ConfigError(
            f"model.name: {settings.name!r} has one input and returns a vector; the data has "
            f"inputs of shape {shapes} and expects outputs of shape {task.output_shape}. Set "
            "model.name to module:function or to a .keras file."
        )
    if settings.name.startswith(APPLICATIONS):
        return _application(settings, shapes, task, pretrained)
    from qat_lib.models import build_reference_model

    (outputs,) = task.output_shape
    if len(shapes) != 3:
        raise ConfigError(
            f"model.name: {settings.name!r} takes images; the data has inputs of shape {shapes}. Set "
            "model.name to module:function or to a .keras file."
        )
    height, width, channels = shapes
    return build_reference_model(
        settings.name, (height, width, channels), outputs, **settings.options
    )


def _application(
    settings: ModelSettings, input_shape: tuple[int, ...], task: Task, pretrained: bool
) -> Any:
    import keras

    name = settings.name.removeprefix(APPLICATIONS)
    builder = getattr(keras.applications, name, None)
    if not callable(builder):
        known = sorted(n for n in dir(keras.applications) if n[0].isupper())
        raise ConfigError(f"keras.applications has no {name!r}. It has: {', '.join(known)}.")
    (classes,) = task.output_shape
    options = {"weights": None, "classes": classes, "input_shape": input_shape, **settings.options}
    if "softmax" not in task.activations:
        options.setdefault("classifier_activation", None)
    try:
        if settings.weights != "imagenet":
            return builder(**options)
        return _with_new_head(
            builder, {**options, "weights": "imagenet" if pretrained else None}, classes
        )
    except (TypeError, ValueError, OSError) as error:
        raise ConfigError(
            f"keras.applications.{name} can't be built for {input_shape}: {error}"
        ) from error


def _with_new_head(builder: Any, options: dict[str, Any], classes: int) -> Any:
    """Build a model for ImageNet weights, with a new classifier for other classes."""
    import keras

    # keras.applications rejects ImageNet weights with another number of classes.
    if classes == 1000:
        return builder(**options)
    body = builder(**{**options, "include_top": False, "pooling": "avg"})
    return keras.Model(
        body.inputs, keras.layers.Dense(classes, name="logits")(body.outputs[0]), name=body.name
    )


def _user_model(settings: ModelSettings, shapes: Shapes, task: Task) -> Any:
    import keras

    from qat_lib.keras.structure import with_graph

    function = import_callable("model.name", settings.name)
    given: dict[str, Any] = {"input_shape": shapes, "classes": len(task.data.classes)}
    # Only for named parameters: a function with ``**options`` may pass all of them on.
    parameters = inspect.signature(function).parameters
    more: dict[str, Any] = {"output_shape": task.output_shape, "task": task.data.task}
    given |= {name: value for name, value in more.items() if name in parameters}
    model = call_with(
        "model.name", settings.name, function, given, settings.options, any_keyword=True
    )
    if isinstance(shapes, Mapping):
        inputs = {name: keras.Input(shape, name=name) for name, shape in shapes.items()}
        return with_graph(model, inputs)
    return with_graph(model, keras.Input(shapes))


def user_modules_of(model: Any) -> dict[str, str]:
    """Return the user's modules with classes of a model and its layers, and their code's digests."""
    modules = {kind.__module__ for kind in _user_classes(model)}
    return {name: user_code_digest(f"{name}:_") for name in sorted(modules)}


def _user_classes(model: Any) -> list[type]:
    """Return the classes of a model and its layers that no installed framework defines."""
    from qat_lib.keras.structure import layers_of

    kinds = dict.fromkeys(type(layer) for layer in layers_of(model))
    return [kind for kind in kinds if kind.__module__.partition(".")[0] not in _FRAMEWORKS]


def _check_classes(model: Any) -> None:
    """Check that later steps, which are other processes, can load the classes of a model.

    Raises:
        UnsupportedModelError: a class is not registered with Keras.
    """
    import keras

    for kind in _user_classes(model):
        name = keras.saving.get_registered_name(kind)
        if keras.saving.get_registered_object(name) is not kind:
            raise UnsupportedModelError(
                f"The model {model.name!r} contains the class {kind.__name__}, which Keras cannot "
                "load in later steps. Decorate it with "
                "@keras.saving.register_keras_serializable()."
            )


def check_model(model: Any, shapes: Shapes, task: Task) -> None:
    """Check that a model takes the inputs of the data and fits its task.

    Raises:
        UnsupportedModelError: it does not, or it is subclassed.
    """
    from qat_lib import LayerGraph

    graph = LayerGraph(model)
    taken = {tensor.rpartition(":")[0]: graph.shapes[tensor][1:] for tensor in graph.inputs}
    if not isinstance(shapes, Mapping):
        if len(taken) != 1:
            raise UnsupportedModelError(
                f"The model {model.name!r} has {len(taken)} inputs ({', '.join(taken)}), but the "
                "data has one. Give each input an array of its name, or take another model."
            )
        shapes = dict.fromkeys(taken, shapes)
    if set(shapes) != set(taken):
        raise UnsupportedModelError(
            f"The model {model.name!r} has the inputs {', '.join(taken)}, but the data has "
            f"{', '.join(shapes)}. Give both the same names."
        )
    for name, expected in taken.items():
        received = tuple(shapes[name])
        # Dimensions of None accept any size.
        fits = len(expected) == len(received) and all(
            e in (None, r) for e, r in zip(expected, received, strict=True)
        )
        if not fits:
            image = len(received) == 3
            kind, axes = ("images", " (height, width, channels)") if image else ("inputs", "")
            change = "data.image_size (and data.color)" if image else "the data"
            raise UnsupportedModelError(
                f"The model {model.name!r} expects {kind} of shape {expected}{axes}, but the data "
                f"has {received}. Set {change}, or take another model."
            )
    _check_classes(model)
    task.check_outputs(output_shapes(model), model.name)


def output_shapes(model: Any) -> dict[str, tuple[int | None, ...]]:
    """Return the shape of a sample of each output by name."""
    from qat_lib import LayerGraph
    from qat_lib.keras.structure import functional_of

    graph, names = LayerGraph(model), functional_of(model).output_names
    return {
        name: tuple(graph.shapes[tensor][1:])
        for name, tensor in zip(names, graph.outputs, strict=True)
    }


def last_activation(model: Any) -> str:
    """Return the activation that a model ends with, ``softmax`` or ``sigmoid``; empty for others.

    Models with several outputs have none.
    """
    import keras

    from qat_lib import LayerGraph

    graph = LayerGraph(model)
    if len(graph.outputs) != 1:
        return ""
    call = graph.producer(graph.outputs[0])
    # A quantized model ends in an Identity layer that keeps the name of the output.
    while isinstance(call.operation, keras.layers.Identity):
        call = graph.producer(call.inputs[0])
    layer = getattr(call.operation, "layer", call.operation)
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    activation = getattr(layer, "activation", None)
    known = {keras.activations.softmax: "softmax", keras.activations.sigmoid: "sigmoid"}
    return known.get(activation, "")
