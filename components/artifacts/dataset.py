"""Output of prepare_data: description, preprocessing, and samples of each part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from qatline.components.artifacts.data_info import INFO_NAME, DatasetInfo
from qatline.components.artifacts.folder import StepFolder

if TYPE_CHECKING:
    from qat_lib.preprocessing import Preprocessing


class Dataset(StepFolder):
    """A prepared data set.

    The samples of a part are two arrays, a list of image files with their labels, or shards with an
    index.
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

    def preprocessing(self) -> Preprocessing:
        """Return the conversion of raw pixels to the model's input.

        Raises:
            DataError: the definition is missing or broken.
        """
        from qat_lib.preprocessing import Preprocessing

        return Preprocessing.load(self.file(self.PREPROCESSING))

    def write_preprocessing(self, preprocessing: Preprocessing) -> None:
        """Write the conversion of raw pixels to the model's input."""
        preprocessing.save(self.file(self.PREPROCESSING))

    def images_file(self, split: str) -> Path:
        """Return the array of a part's images."""
        return self.file(f"{split}_x.npy")

    def labels_file(self, split: str) -> Path:
        """Return the array of a part's labels."""
        return self.file(f"{split}_y.npy")

    def listing_file(self, split: str) -> Path:
        """Return the JSON list of a part's image files and labels."""
        return self.file(f"{split}_files.json")

    def shards_file(self, split: str) -> Path:
        """Return the JSON index of a part's shards."""
        return self.file(f"{split}_shards.json")
