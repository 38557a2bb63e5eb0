"""Error messages about unreadable or misfitting weights files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qat_lib.errors import ConfigError
from qat_lib.support.foreign_errors import describe_error


@contextmanager
def reading_weights(file: Path, suffixes: tuple[str, ...], model: str) -> Iterator[None]:
    """Translate any failure in the block to a ``ConfigError`` that names the file.

    Args:
        file: the weights file.
        suffixes: allowed suffixes of the file.
        model: name of the model for the weights.

    Raises:
        ConfigError: the file has another suffix, is missing or damaged, or does not fit the model.
    """
    if file.suffix not in suffixes:
        *others, last = suffixes
        expected = f"{', '.join(others)} or {last}" if others else last
        raise ConfigError(f"Expected a weights file ({expected}). Received: {str(file)!r}.")
    try:
        yield
    except ConfigError:
        raise
    except FileNotFoundError as error:
        raise ConfigError(f"There is no weights file {str(file)!r}.") from error
    except OSError as error:
        raise ConfigError(
            f"The weights file {str(file)!r} can't be read: {error.strerror or error}."
        ) from error
    except Exception as error:  # a framework raises many kinds for a file of another model
        raise ConfigError(
            f"The weights file {str(file)!r} does not fit the model {model!r}: "
            f"{describe_error(error)}."
        ) from error


def refuse_unused(names: Iterable[str], used: Collection[str], model: str) -> None:
    """Reject PyTorch-named arrays without a layer.

    PyTorch's counts of training steps (``num_batches_tracked``) are ignored.

    Raises:
        ConfigError: some arrays have no layer; the message names the first.
    """
    left = []
    for name in names:
        if name not in used and not name.endswith("num_batches_tracked"):
            left.append(name)
    if left:
        raise ConfigError(
            f"The weights hold {left[0]!r} and {len(left) - 1} more that fit no layer of {model!r}."
        )
