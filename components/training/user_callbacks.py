"""Callbacks of the user: opening, errors, and state in checkpoints."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from qat_lib.errors import ConfigError
from qat_lib.files.state_file import write_state
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.settings.code_settings import callback_reference, name_and_options
from qatline.components.support.events import Progress
from qatline.components.support.user_code import call, import_callable

METHODS = (
    "set_model",
    "on_train_begin",
    "on_epoch_begin",
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_epoch_end",
    "on_train_end",
)
"""Methods of Keras's callbacks that a training calls."""


class UserCallbacks:
    """The callbacks in the config, in order, as part of a checkpoint.

    Exceptions of their methods become errors with the key and the name of the callback. Callbacks
    with ``get_state`` and ``set_state`` continue after an interruption; others start again.

    Args:
        schedule: the settings.

    Raises:
        ConfigError: a callback cannot be imported or created.
    """

    def __init__(self, schedule: TrainingSettings | QATSettings) -> None:
        self._key = f"{schedule.section}.callbacks"
        self._names, self.objects = [], list[Any]()
        for code in schedule.callbacks:
            name, options = name_and_options(code)
            kind = import_callable(self._key, callback_reference(name))
            self._names.append(name)
            self.objects.append(call(self._key, name, kind, **options))

    def require(self, fits: Callable[[Any], bool], expected: str) -> None:
        """Check all callbacks.

        Raises:
            ConfigError: a callback does not fit.
        """
        for name, each in zip(self._names, self.objects, strict=True):
            if not fits(each):
                raise ConfigError(
                    f"{self._key}: {name!r} is a {type(each).__name__}, expected {expected}"
                )

    def guard(self, base: type = object) -> None:
        """Convert exceptions of the callbacks' methods, apart from those of the base class."""
        for name, each in zip(self._names, self.objects, strict=True):
            for method in METHODS:
                own = getattr(type(each), method, None)
                # Keras skips a batch's calls if all callbacks have the default methods.
                if own is not None and own is not getattr(base, method, None):
                    setattr(each, method, self._guarded(name, getattr(each, method)))

    def _guarded(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def run(*args: Any, **options: Any) -> Any:
            return call(self._key, name, partial(method, *args, **options))

        return run

    def warn_of_lost_state(self, progress: Progress) -> None:
        """Report the callbacks that start again after an interruption."""
        pairs = zip(self._names, self.objects, strict=True)
        if lost := [name for name, each in pairs if not _has_state(each)]:
            progress.warn(
                f"{self._key}: {', '.join(lost)} start again after the interruption, without "
                "get_state and set_state"
            )

    def get_state(self) -> list[Any]:
        """Return the state of each callback; None without ``get_state``.

        Raises:
            ConfigError: a state contains types that a checkpoint does not support.
        """
        states = []
        for name, each in zip(self._names, self.objects, strict=True):
            state = call(self._key, name, each.get_state) if _has_state(each) else None
            try:
                write_state(io.BytesIO(), state)
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"{self._key}: get_state of {name!r} returned {type(state).__name__}; expected "
                    f"numbers, texts, arrays, lists and mappings of them: {error}"
                ) from error
            states.append(state)
        return states

    def set_state(self, states: Sequence[Any]) -> None:
        """Restore the result of ``get_state``."""
        for name, each, state in zip(self._names, self.objects, states, strict=True):
            if state is not None:
                call(self._key, name, partial(each.set_state, state))


def _has_state(callback: Any) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(
        getattr(callback, "set_state", None)
    )
