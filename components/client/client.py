"""Requests to a served model, by the Open Inference Protocol over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .decoding import Array, answers

PACKAGE = "package.json"
ANSWER = "answer"
"""Output of servers that decode: JSON text of each sample's answer."""

DATATYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "INT8": np.int8,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
"""NumPy's types by their names in the Open Inference Protocol."""

_NAMES = {np.dtype(dtype): name for name, dtype in DATATYPES.items()}
_HEADER = "Inference-Header-Content-Length"


class ServerError(Exception):
    """The server can't be reached, or refuses a request."""


class Client:
    """Client of one model.

    Args:
        url: address of the server, such as ``http://localhost:8080``.
        package: folder of the package, or its ``package.json``.
        model: name of the served model. Default: the package's.
        timeout: seconds to wait for an answer.
    """

    def __init__(
        self, url: str, package: str | Path, *, model: str = "", timeout: float = 60.0
    ) -> None:
        path = Path(package)
        text = (path / PACKAGE if path.is_dir() else path).read_text(encoding="utf-8")
        content = json.loads(text)
        self.facts: dict[str, Any] = content["model"]
        self._models, self._timeout = f"{url.rstrip('/')}/v2/models", timeout
        self._served = model or self.facts["serves"]
        # qatline serve and ensembles of Triton take raw data.
        self._is_plain = content["target"] == "plain"
        self._is_ensemble = self._served == self.facts["serves"] != self.facts["name"]

    def predict(self, samples: Array | Mapping[str, Array]) -> list[dict[str, Any]]:
        """Return the answer of each sample: class, boxes, numbers; or its outputs by name.

        Args:
            samples: raw data, ``(samples, ...)`` with the channels in the last axis, such as uint8
                images; of several inputs by name.

        Raises:
            ServerError: the server can't be reached, or refuses the request.
        """
        decoding = self.facts["decoding"]
        if self._is_ensemble or (self._is_plain and decoding):
            found = self._post(self._served, self._by_name(samples), [ANSWER])
            return [json.loads(text) for text in found[ANSWER]]
        outputs = self.infer(samples)
        if decoding:
            return answers(decoding, outputs)
        rows = zip(*outputs.values(), strict=True)
        return [dict(zip(outputs, (x.tolist() for x in row), strict=True)) for row in rows]

    def predict_files(self, paths: Sequence[str | Path]) -> list[dict[str, Any]]:
        """Return the answers to image files.

        Raises:
            ValueError: the model takes no images, or an image has another size than the model takes
                and the model defines no resizing.
        """
        return self.predict(np.stack([self._image(path) for path in paths]))

    def infer(self, samples: Array | Mapping[str, Array]) -> dict[str, Any]:
        """Return the model's outputs by name, with the channels in the last axis.

        Args:
            samples: see ``predict``.
        """
        arrays = self._by_name(samples)
        layouts = {each["name"]: each["layout"] for each in self.facts["outputs"]}
        if self._is_plain:
            return self._post(self._served, arrays, list(layouts))
        model = self.facts["name"] if self._is_ensemble else self._served
        found = self._post(model, prepared(self.facts, arrays), list(layouts))
        return {
            name: np.moveaxis(x, 1, -1) if layouts[name].startswith("NC") else x
            for name, x in found.items()
        }

    def _by_name(self, samples: Array | Mapping[str, Array]) -> dict[str, Array]:
        inputs = self.facts["inputs"]
        arrays = samples if isinstance(samples, Mapping) else {inputs[0]["name"]: samples}
        return {name: np.ascontiguousarray(x) for name, x in arrays.items()}

    def _at(self, model: str) -> str:
        return f"{self._models}/{urllib.parse.quote(model, safe='')}"

    def _image(self, path: str | Path) -> Array:
        from PIL import Image, ImageOps

        form = self.facts["preprocessing"]
        if not form or "inputs" in form or len(form["image_shape"]) != 3:
            raise ValueError("the model takes no images; send arrays with predict()")
        height, width, channels = form["image_shape"]
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened).convert("L" if channels == 1 else "RGB")
        if form["resize"] and image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        if image.size != (width, height):
            raise ValueError(f"expected an image of {width} x {height} pixels, received {path}")
        return np.asarray(image).reshape(height, width, channels)

    def _post(self, model: str, arrays: Mapping[str, Array], only: Sequence[str]) -> dict[str, Any]:
        # Open Inference Protocol, extension for binary tensors: a JSON header, then the bytes of
        # the inputs in its order.
        described, parts = [], []
        for name, x in arrays.items():
            data = x.tobytes()
            described.append(
                {
                    "name": name,
                    "shape": list(x.shape),
                    "datatype": _NAMES[x.dtype],
                    "parameters": {"binary_data_size": len(data)},
                }
            )
            parts.append(data)
        wanted = [{"name": name, "parameters": {"binary_data": True}} for name in only]
        head = json.dumps({"inputs": described, "outputs": wanted}).encode()
        headers = {"Content-Type": "application/octet-stream", _HEADER: str(len(head))}
        request = urllib.request.Request(
            f"{self._at(model)}/infer", data=b"".join([head, *parts]), headers=headers
        )
        # The answer has the same layout. Outputs without a size are JSON, as some servers send
        # despite the request.
        data, length = self._read(request)
        size = int(length or len(data))
        outputs, start = {}, size
        for each in json.loads(data[:size])["outputs"]:
            count = (each.get("parameters") or {}).get("binary_data_size")
            if count is None:
                values: Any = each["data"]
            else:
                values, start = data[start : start + count], start + count
            outputs[each["name"]] = _tensor(each, values)
        return outputs

    def _read(self, request: urllib.request.Request) -> tuple[bytes, str | None]:
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                return answer.read(), answer.headers.get(_HEADER)
        except urllib.error.HTTPError as error:
            reason = error.read().decode(errors="replace")[:500]
            raise ServerError(f"{request.full_url}: {error.code} {reason}") from error
        except OSError as error:
            raise ServerError(f"{request.full_url} can't be reached: {error}") from error


def prepared(facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return a model's inputs for raw data, both by name.

    Args:
        facts: the part ``model`` of ``package.json``.
        arrays: raw data, ``(samples, ...)`` with the channels in the last axis.
    """
    form, found = facts["preprocessing"], dict[str, Array]()
    for each in facts["inputs"]:
        name, x = each["name"], np.asarray(arrays[each["name"]])
        own = form["inputs"][name] if form and "inputs" in form else form
        if own and not facts["preprocessing_embedded"]:
            x = x.astype(np.float32) * np.float32(own["scale"])
            x -= np.asarray(own["mean"], np.float32)
            x /= np.asarray(own["std"], np.float32)
        if each["layout"].startswith("NC"):
            x = np.moveaxis(x, -1, 1)
        found[name] = np.ascontiguousarray(x, DATATYPES[each["datatype"]])
    return found


def _tensor(described: Mapping[str, Any], values: Any) -> Any:
    """Return an output from its JSON list or its bytes."""
    if described["datatype"] == "BYTES":
        if isinstance(values, list):
            return values
        texts, start = [], 0
        while start < len(values):
            end = start + 4 + int.from_bytes(values[start : start + 4], "little")
            texts.append(values[start + 4 : end].decode())
            start = end
        return texts
    dtype = DATATYPES[described["datatype"]]
    flat: Array = (
        np.array(values, dtype) if isinstance(values, list) else np.frombuffer(values, dtype)
    )
    return flat.reshape(described["shape"])
