"""Parts of a service that Triton runs in Python: preprocessing, decoding, and ONNX Runtime."""

import json
import pathlib
import sys

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from qatline_client.client import ANSWER, prepared
from qatline_client.decoding import answers


class TritonPythonModel:
    """One part, named by the parameter ``part`` of the configuration."""

    def initialize(self, args):
        """Read the model's description, and open the model where this part computes it."""
        config = json.loads(args["model_config"])
        folder = pathlib.Path(__file__).parent
        self.facts = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        self.outputs = [each["name"] for each in config["output"]]
        self.run = getattr(self, config["parameters"]["part"]["string_value"])
        if self.run == self.compute:
            import onnxruntime

            self.session = onnxruntime.InferenceSession(
                str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
            )

    def prepare(self, arrays):
        """Return the model's inputs for raw data."""
        return prepared(self.facts, arrays)

    def compute(self, arrays):
        """Return the model's outputs."""
        return dict(zip(self.outputs, self.session.run(self.outputs, arrays), strict=True))

    def decode(self, arrays):
        """Return each sample's answer as JSON."""
        for each in self.facts["outputs"]:
            if each["layout"].startswith("NC"):
                arrays[each["name"]] = np.moveaxis(arrays[each["name"]], 1, -1)
        found = [json.dumps(each) for each in answers(self.facts["decoding"], arrays)]
        return {ANSWER: np.array([[text] for text in found], dtype=object)}

    def execute(self, requests):
        """Answer requests, each on its own: an error fails its request only."""
        responses = []
        for request in requests:
            try:
                found = self.run({each.name(): each.as_numpy() for each in request.inputs()})
                tensors = [pb_utils.Tensor(name, found[name]) for name in self.outputs]
                responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
            except Exception as error:  # noqa: BLE001
                failed = pb_utils.TritonError(f"{type(error).__name__}: {error}")
                responses.append(pb_utils.InferenceResponse(error=failed))
        return responses
