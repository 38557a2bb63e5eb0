"""Output of prepare_data: description, preprocessing, and samples of each part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from qatline.components.artifacts.data_info import INFO_NAME, DatasetInfo
from qatline.components.artifacts.folder import StepFolder

if TYPE_CHECKING:
    from qat_lib.preprocessing import AnyPreprocessing


class Dataset(StepFolder):
    """A prepared data set.

    The inputs of a part are arrays, a list of image files, or shards with an index; its targets are
    an array, as are the sample weights of the training part, if any.
    """

    STEP: ClassVar[str] = "prepare_data"
    INFO: ClassVar[str] = INFO_NAME
    PREPROCESSING: ClassVar[str] = "preprocessing.json"

    def info(self) -> DatasetInfo:
        """Return the description of the data.

        Raises:
            DataError: it is missing or has another content.
        """
        return DatasetInfo.load(self.path)

    def preprocessing(self) -> AnyPreprocessing:
        """Return the conversion of raw data to the model's input, or to several.

        Raises:
            DataError: the definition is missing or broken.
        """
        from qat_lib.preprocessing import load_preprocessing

        return load_preprocessing(self.file(self.PREPROCESSING))

    def write_preprocessing(self, preprocessing: AnyPreprocessing) -> None:
        """Write the conversion of raw data to the model's input."""
        preprocessing.save(self.file(self.PREPROCESSING))

    def input_file(self, split: str, name: str = "") -> Path:
        """Return the array of a part's input; ``name`` is empty for a data set with one."""
        return self.file(f"{split}_x_{name}.npy" if name else f"{split}_x.npy")

    def targets_file(self, split: str) -> Path:
        """Return the array of a part's targets."""
        return self.file(f"{split}_y.npy")

    def weights_file(self, split: str) -> Path:
        """Return the array of a part's sample weights, which only a training part may have."""
        return self.file(f"{split}_w.npy")

    def listing_file(self, split: str) -> Path:
        """Return the JSON list of a part's image files."""
        return self.file(f"{split}_files.json")

    def shards_file(self, split: str) -> Path:
        """Return the JSON index of a part's shards."""
        return self.file(f"{split}_shards.json")
