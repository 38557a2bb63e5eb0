"""Sources of Keras models.

Supported are reference networks, keras.applications, the user's own functions, and files.
"""

from __future__ import annotations

from typing import Any

from qat_lib.errors import ConfigError, UnsupportedModelError
from qatline.components.settings import ModelSettings
from qatline.components.support.other_tasks import OTHER_TASKS
from qatline.components.support.user_code import call_with, import_callable

APPLICATIONS = "keras.applications:"


def open_model(
    settings: ModelSettings, input_shape: tuple[int, int, int], classes: int
) -> tuple[Any, bool]:
    """Return the model selected by ``settings``, and whether it is already trained.

    Args:
        settings: the model section.
        input_shape: (height, width, channels) of the data.
        classes: number of classes of the data.

    Raises:
        ConfigError: the name, its options or its weights are wrong.
        UnsupportedModelError: the model does not fit the data, is subclassed, or cannot be loaded
            safely.
    """
    if settings.name.endswith(".keras"):
        from qat_lib import load_model

        model, trained = load_model(settings.name), True
    else:
        model, trained = _build(settings, input_shape, classes), False
    check_model(model, input_shape, classes)
    if settings.weights and not settings.name.startswith(APPLICATIONS):
        from qat_lib.models.weights import load_weights

        load_weights(model, settings.weights)
        trained = True
    return model, trained if settings.trained is None else settings.trained


def _build(settings: ModelSettings, input_shape: tuple[int, int, int], classes: int) -> Any:
    from qat_lib.models import build_reference_model

    if settings.name.startswith(APPLICATIONS):
        return _application(settings, input_shape, classes)
    if ":" in settings.name:
        return _user_model(settings, input_shape, classes)
    return build_reference_model(settings.name, input_shape, classes, **settings.options)


def _application(settings: ModelSettings, input_shape: tuple[int, int, int], classes: int) -> Any:
    import keras

    name = settings.name.removeprefix(APPLICATIONS)
    builder = getattr(keras.applications, name, None)
    if not callable(builder):
        known = sorted(n for n in dir(keras.applications) if n[0].isupper())
        raise ConfigError(f"keras.applications has no {name!r}. It has: {', '.join(known)}.")
    options = {"weights": None, "classes": classes, "input_shape": input_shape, **settings.options}
    own_file = bool(settings.weights) and settings.weights != "imagenet"
    try:
        pretrained = settings.weights == "imagenet"
        model = _with_new_head(builder, options, classes) if pretrained else builder(**options)
    except (TypeError, ValueError, OSError) as error:
        raise ConfigError(
            f"keras.applications.{name} can't be built for {input_shape}: {error}"
        ) from error
    if own_file:
        from qat_lib.models.weights import load_weights

        load_weights(model, str(settings.weights))
    return model


def _with_new_head(builder: Any, options: dict[str, Any], classes: int) -> Any:
    """Build a model with ImageNet weights and a new classifier for other classes."""
    import keras

    options = {**options, "weights": "imagenet"}
    # keras.applications rejects ImageNet weights with another number of classes.
    if classes == 1000:
        return builder(**options)
    body = builder(**{**options, "include_top": False, "pooling": "avg"})
    return keras.Model(
        body.inputs, keras.layers.Dense(classes, name="logits")(body.outputs[0]), name=body.name
    )


def _user_model(settings: ModelSettings, input_shape: tuple[int, int, int], classes: int) -> Any:
    function = import_callable("model.name", settings.name)
    given = {"input_shape": input_shape, "classes": classes}
    return call_with(
        "model.name", settings.name, function, given, settings.options, any_keyword=True
    )


def check_model(model: Any, input_shape: tuple[int, int, int], classes: int) -> None:
    """Check that a model accepts the images and returns one value per class.

    Raises:
        UnsupportedModelError: it does not, or it is subclassed.
    """
    from qat_lib import LayerGraph

    graph = LayerGraph(model)
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        raise UnsupportedModelError(
            f"The pipeline trains models with one input and one output. {model.name!r} has "
            f"{len(graph.inputs)} and {len(graph.outputs)}. {OTHER_TASKS}"
        )
    (source,), (result,) = graph.inputs, graph.outputs
    expected, received = graph.shapes[source][1:], tuple(input_shape)
    # Dimensions of None accept any size.
    taken = tuple(r if e is None else e for e, r in zip(expected, received, strict=False))
    if len(expected) != len(received) or taken != received:
        raise UnsupportedModelError(
            f"The model {model.name!r} expects images of shape {expected} (height, width, "
            f"channels), but the data has {received}. Set data.image_size (and data.color), or "
            f"take another model. {OTHER_TASKS}"
        )
    output = graph.shapes[result][1:]
    if output != (classes,):
        raise UnsupportedModelError(
            f"The model {model.name!r} gives outputs of shape {output}, but the data has "
            f"{classes} classes: expected ({classes},). Change the last layer, or data.classes. "
            f"{OTHER_TASKS}"
        )


def gives_probabilities(model: Any) -> bool:
    """Return whether the model's outputs are softmax probabilities instead of logits."""
    import keras

    from qat_lib import LayerGraph

    graph = LayerGraph(model)
    (result,) = graph.outputs
    call = graph.producer(result)
    # A quantized model ends in an Identity layer that keeps the name of the output.
    while isinstance(call.operation, keras.layers.Identity):
        call = graph.producer(call.inputs[0])
    layer = getattr(call.operation, "layer", call.operation)
    return (
        isinstance(layer, keras.layers.Softmax)
        or getattr(layer, "activation", None) is keras.activations.softmax
    )
