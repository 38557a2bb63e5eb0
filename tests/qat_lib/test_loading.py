"""load_model: what is no model file says so."""

from pathlib import Path

import keras
import pytest

from qat_lib import load_model
from qat_lib.errors import UnsupportedModelError


@pytest.mark.parametrize("content", [b"", b"hello", None])
def test_what_is_no_whole_keras_file_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    if content is None:
        x = keras.Input((2,))
        keras.Model(x, keras.layers.Dense(2)(x)).save(path)
        assert load_model(path).count_params() == 6
        content = path.read_bytes()[:-200]
    path.write_bytes(content)
    with pytest.raises(UnsupportedModelError, match="only a part of one"):
        load_model(path)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="There is no model file"):
        load_model(tmp_path / "none.keras")
