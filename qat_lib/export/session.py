"""ONNX Runtime without optimizations, as the numeric reference.

Inputs are converted to the layout and type of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.errors import ExportError
from qat_lib.files.text_files import parse_json
from qat_lib.onnx_view.loading import load_onnx
from qat_lib.onnx_view.lookup_tables import with_moved_tables
from qat_lib.onnx_view.metadata import read_names
from qat_lib.preprocessing import Preprocessing

NUMPY_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}

EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
"""Option of a session for a model passed as bytes: folder of its external data."""


class ReferenceSession:
    """Runs an ONNX file on batches in the form of the exported model.

    Args:
        path: the file.
        extra_outputs: inner tensors to return, too.
        metadata: the file's ``qatline.*`` metadata: layout of the inputs, embedded preprocessing.
        layout: axis order of the images in the batches. Default ``"NHWC"``, as in Keras.
        moved: largest relative change of the lookup tables. Default 0: none.

    Raises:
        ExportError: ONNX Runtime can't load the file.
    """

    def __init__(
        self,
        path: Path,
        *,
        extra_outputs: tuple[str, ...] = (),
        metadata: Mapping[str, str],
        layout: str = "NHWC",
        moved: float = 0.0,
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4  # Logged errors are raised, too.
        self._extra = extra_outputs
        source: Any = with_moved_tables(path, moved) if moved else str(path)
        added: list[str] = []
        if extra_outputs:
            source, added = _with_outputs(path, extra_outputs)
            options.add_session_config_entry(EXTERNAL_FOLDER, str(path.resolve().parent))
        try:
            self._session = onnxruntime.InferenceSession(
                source, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's exceptions have no common base class.
            raise ExportError(
                f"ONNX Runtime can't load {path}: {error}. Export the model again."
            ) from error
        self._inputs = self._session.get_inputs()
        # Added outputs follow the model's own; a requested extra may also be one of the model's
        # outputs.
        names = [output.name for output in self._session.get_outputs()]
        self._outputs = [name for name in names if name not in added]
        self._layout = read_names(metadata, "layout")
        self._given = layout
        self._preprocessing = None
        if metadata.get("preprocessing_embedded") == "true":
            text = metadata.get("preprocessing", "null")
            values = parse_json(text, "The metadata qatline.preprocessing", error=ExportError)
            self._preprocessing = Preprocessing.from_dict(values)
        self._last: dict[str, np.ndarray] = {}

    @property
    def fixed_batch(self) -> int | None:
        """Fixed batch size of the file; None if open."""
        first = self._inputs[0].shape[0] if self._inputs and self._inputs[0].shape else None
        return first if isinstance(first, int) else None

    def model_inputs(self, batch: list[np.ndarray]) -> list[np.ndarray]:
        """Return the model's inputs for a batch, after the preprocessing of raw images.

        Raises:
            ExportError: the number of arrays differs from the number of inputs.
        """
        if len(batch) != len(self._inputs):
            raise ExportError(f"Expected {len(self._inputs)} input arrays. Received: {len(batch)}.")
        if self._preprocessing is None:
            return batch
        return [self._preprocess(self._preprocessing, x) for x in batch]

    def _preprocess(self, preprocessing: Preprocessing, images: np.ndarray) -> np.ndarray:
        """Return preprocessed images in their original axis order."""
        if self._given == "NHWC" or images.ndim != 4:
            return preprocessing.apply(images)
        processed = preprocessing.apply(images.transpose(0, 2, 3, 1))
        return np.ascontiguousarray(processed.transpose(0, 3, 1, 2))

    def run(self, batch: list[np.ndarray]) -> list[np.ndarray]:
        """Return the file's outputs for a batch, in the model's order.

        Raises:
            ExportError: the batch does not match the file's inputs.
        """
        feeds = dict(map(self._feed, self._inputs, batch))
        names = list(dict.fromkeys([*self._outputs, *self._extra]))
        try:
            values = self._session.run(names, feeds)
        except Exception as error:  # ONNX Runtime's exceptions have no common base class.
            raise ExportError(f"ONNX Runtime can't run the file on this batch: {error}.") from error
        self._last = dict(zip(names, values, strict=True))
        return [np.asarray(self._last[name]) for name in self._outputs]

    def _feed(self, spec: Any, array: np.ndarray) -> tuple[str, np.ndarray]:
        moved = self._given == "NHWC" and self._layout.get(spec.name) == "NCHW"
        x = array.transpose(0, 3, 1, 2) if moved else array
        return spec.name, np.ascontiguousarray(x, NUMPY_TYPES.get(spec.type))

    def extra(self, name: str) -> np.ndarray:
        """Return an extra output of the last run."""
        return np.asarray(self._last[name])


def _with_outputs(path: Path, names: tuple[str, ...]) -> tuple[bytes, list[str]]:
    """Expose inner tensors as outputs; return the model and the added names."""
    import onnx

    proto = load_onnx(path)
    have = {value.name for value in proto.graph.output}
    added = [name for name in names if name not in have]
    # Names suffice: ONNX Runtime infers the types of outputs.
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in added)
    return bytes(proto.SerializeToString()), added
