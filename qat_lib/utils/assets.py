"""Folders for the models of an experiment."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qat_lib.errors import ConfigError

logger = logging.getLogger("qat_lib")


@dataclass(frozen=True, kw_only=True)
class AssetFolder:
    """Paths of one experiment, as strings.

    Attributes:
        base: the experiment's folder.
        fp32: folder of the original model.
        fp32_saved_model: path for the original model in Keras 3 format,
            ``.../saved_model.keras``.
        fp32_onnx_model: path for its conversion, ``.../original.onnx``.
        int8: folder of the quantized model.
        int8_saved_model: path for the quantized model, ``.../saved_model.keras``.
        int8_onnx_model: path for its conversion, ``.../quantized.onnx``.
    """

    base: str
    fp32: str
    fp32_saved_model: str
    fp32_onnx_model: str
    int8: str
    int8_saved_model: str
    int8_onnx_model: str


class CreateAssetsFolders:
    """Create a base folder with a folder for each experiment.

    Args:
        base_experiment_directory: the base folder; an existing folder is reused.

    Examples:
        >>> assets = CreateAssetsFolders("toolkit_basics")
        >>> assets.add_folder("example")
        >>> assets.example.fp32_saved_model
        'toolkit_basics/example/fp32/saved_model.keras'
    """

    def __init__(self, base_experiment_directory: str | os.PathLike[str]) -> None:
        self.base = os.fspath(base_experiment_directory)
        os.makedirs(self.base, exist_ok=True)

    def add_folder(self, folder_name: str) -> None:
        """Create empty folders of an experiment and set the attribute ``folder_name``.

        The toolkit deletes the files of an earlier run. This method moves them to
        ``<folder_name>.1``, ``.2`` and so on, so that no file is lost.

        Raises:
            ConfigError: ``folder_name`` is not a valid folder name or is already an attribute.
        """
        parts = Path(folder_name).parts
        if (
            len(parts) != 1
            or parts[0] in (".", "..", os.sep)
            or hasattr(type(self), folder_name)
            or parts[0] == "base"
        ):
            raise ConfigError(
                f"Expected a plain folder name other than 'base' or 'add_folder'. Received: {folder_name!r}."
            )
        base = os.path.join(self.base, folder_name)
        _move_aside(base)
        fp32, int8 = os.path.join(base, "fp32"), os.path.join(base, "int8")
        for folder in (fp32, int8):
            os.makedirs(folder, exist_ok=True)
        paths = AssetFolder(
            base=base,
            fp32=fp32,
            fp32_saved_model=os.path.join(fp32, "saved_model.keras"),
            fp32_onnx_model=os.path.join(fp32, "original.onnx"),
            int8=int8,
            int8_saved_model=os.path.join(int8, "saved_model.keras"),
            int8_onnx_model=os.path.join(int8, "quantized.onnx"),
        )
        setattr(self, folder_name, paths)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def _move_aside(folder: str) -> None:
    """Rename a folder with files, using the first free number as its suffix."""
    if not any(files for _, _, files in os.walk(folder)):
        return
    number = 1
    # lexists also sees dangling links, which rename would replace.
    while os.path.lexists(f"{folder}.{number}"):
        number += 1
    os.rename(folder, f"{folder}.{number}")
    logger.warning(
        "The folder %s was not empty: its files are now in %s.%d.", folder, folder, number
    )
