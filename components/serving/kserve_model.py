"""A service as a model of KServe's server."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Mapping
from typing import Any

import kserve
import numpy as np
from kserve.errors import InvalidInput, ModelNotReady
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.infer_type import RequestedOutput
from prometheus_client import Counter, Histogram

from qat_lib.errors import EngineBusyError, QatlineError
from qatline.components.client.client import DATATYPES
from qatline.components.serving.batching import Batcher
from qatline.components.serving.service import Service

logger = logging.getLogger(__name__)

_LENGTH = "inference-header-content-length"
_BATCHES = Histogram(
    "qatline_batch_samples", "Samples of each batch", ["model"], buckets=[1, 2, 4, 8, 16, 32, 64]
)
_RELOADS = Counter("qatline_reloads", "Changes of the served model", ["model"])


class Repository(kserve.ModelRepository):
    """Models that remain loaded until the process ends.

    KServe unloads its models when it stops, while requests still run.
    """

    def unload(self, name: str) -> None:
        """Keep the model."""


class BinaryDataPlane(DataPlane):
    """Reads binary tensors of REST requests as they are.

    KServe converts them to Python lists, in about 2.5 ms for an image of 32 x 32 pixels.
    """

    def decode_inference_request(
        self, body: Any, headers: dict[str, str], model_name: str
    ) -> kserve.InferRequest:
        """Return a request; requests without binary tensors are read by KServe."""
        # The length of the JSON part; raw tensors follow in the order of the inputs.
        length = headers.get(_LENGTH)
        if not isinstance(body, bytes) or length is None:
            return super().decode_inference_request(body, headers, model_name)
        try:
            head = json.loads(body[: int(length)])
            inputs, data, start = [], [], int(length)
            for each in head["inputs"]:
                end = start + int(each.get("parameters", {})["binary_data_size"])
                data.append(body[start:end])
                start = end
                known = {key: each[key] for key in ("name", "shape", "datatype")}
                inputs.append(kserve.InferInput(**known))
            wanted = [
                RequestedOutput(each["name"], each.get("parameters"))
                for each in head.get("outputs") or ()
            ]
        except (AttributeError, KeyError, TypeError, ValueError):
            return super().decode_inference_request(body, headers, model_name)
        return kserve.InferRequest(
            model_name=model_name,
            infer_inputs=inputs,
            request_id=head.get("id"),
            raw_inputs=data,
            parameters=head.get("parameters"),
            request_outputs=wanted or None,
        )


class EngineModel(kserve.Model):
    """Model with raw inputs; concurrent requests share batches of the engine."""

    def __init__(self, service: Service, *, waiting: int) -> None:
        super().__init__(service.package.model.name)
        self._waiting = waiting
        # One value, which a reload replaces at once.
        self._serving = service, self._batches(service)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.ready = True

    def replace(self, service: Service) -> None:
        """Answer further requests with another service, from any thread."""
        before, self._serving = self._serving, (service, self._batches(service))
        _RELOADS.labels(self.name).inc()
        if self._loop is None:  # no request yet
            before[0].engine.close()
        else:
            asyncio.run_coroutine_threadsafe(self._close(*before), self._loop)

    async def _close(self, service: Service, batcher: Batcher) -> None:
        await batcher.drain()
        service.engine.close()

    def _batches(self, service: Service) -> Batcher:
        return Batcher(
            service.compute,
            largest=service.engine.batch_sizes[1],
            parallel=service.engine.clients,
            waiting=self._waiting,
            observe=_BATCHES.labels(self.name).observe,
        )

    async def get_input_types(self) -> list[dict[str, Any]]:
        """Return name, data type and shape of the inputs."""
        return self._serving[0].inputs

    async def get_output_types(self) -> list[dict[str, Any]]:
        """Return name, data type and shape of the outputs."""
        return self._serving[0].outputs

    async def predict(
        self,
        payload: Any,
        headers: Mapping[str, str] | None = None,  # noqa: ARG002
        response_headers: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> kserve.InferResponse:
        """Answer a request.

        Raises:
            InvalidInput: its inputs or outputs are not those of the model.
            ModelNotReady: too many requests wait.
        """
        self._loop = asyncio.get_running_loop()
        if not isinstance(payload, kserve.InferRequest):
            raise InvalidInput("expected a request of the Open Inference Protocol (v2)")
        service, batcher = self._serving
        arrays = _arrays(payload, service.inputs)
        known = {each["name"]: each["datatype"] for each in service.outputs}
        wanted = [each.name for each in payload.request_outputs or ()] or list(known)
        if unknown := sorted(set(wanted) - set(known)):
            raise InvalidInput(f"expected outputs among {', '.join(known)}, received {unknown[0]}")
        try:
            found = await batcher.run(arrays, wanted)
        except EngineBusyError as error:
            raise ModelNotReady(self.name, str(error)) from error
        except QatlineError as error:
            raise InvalidInput(str(error)) from error
        outputs = []
        for name in wanted:
            output = kserve.InferOutput(
                name=name, shape=list(found[name].shape), datatype=known[name]
            )
            output.set_data_from_numpy(found[name], binary_data=payload.use_binary_outputs)
            outputs.append(output)
        return kserve.InferResponse(
            response_id=payload.id or str(uuid.uuid4()),
            model_name=self.name,
            infer_outputs=outputs,
            use_binary_outputs=payload.use_binary_outputs,
            requested_outputs=payload.request_outputs,
        )


def _arrays(payload: kserve.InferRequest, expected: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the inputs of a request by name.

    Raises:
        InvalidInput: an input is missing, unknown, or of another type or shape.
    """
    given = {each.name: each for each in payload.inputs}
    names = [each["name"] for each in expected]
    if set(given) != set(names):
        raise InvalidInput(f"expected the inputs {', '.join(names)}, received {', '.join(given)}")
    found, samples = dict[str, Any](), set[int]()
    for each in expected:
        name, tensor = each["name"], given[each["name"]]
        shape = [int(size) for size in tensor.shape]
        fits = len(shape) == len(each["shape"]) and all(
            wanted in (-1, size) for wanted, size in zip(each["shape"], shape, strict=True)
        )
        if tensor.datatype != each["datatype"] or not fits or not all(shape):
            sizes = ["any" if size == -1 else str(size) for size in each["shape"]]
            raise InvalidInput(
                f"expected {name} as {each['datatype']} of shape "
                f"({', '.join(['samples', *sizes[1:]])}), received "
                f"{tensor.datatype} {tuple(shape)}"
            )
        try:
            found[name] = np.asarray(tensor.as_numpy(), DATATYPES[each["datatype"]]).reshape(shape)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInput(
                f"{name}: the data does not fit its shape and type: {error}"
            ) from error
        samples.add(shape[0])
    if len(samples) != 1:
        raise InvalidInput(f"expected as many samples in each input, received {sorted(samples)}")
    return found
