"""Compare an exported ONNX file with its PyTorch module, by output or by layer."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from qat_lib.errors import ExportError
from qat_lib.export.comparing import compare_with
from qat_lib.export.parity_report import ParityReport
from qat_lib.support.foreign_errors import describe_error
from qat_lib.torch.capture import Example, in_float32, is_tensor
from qat_lib.torch.inference import in_inference


def check_parity(
    module: nn.Module,
    path: str | os.PathLike[str],
    data: Any,
    *,
    layers: bool = False,
    batch_size: int = 32,
) -> ParityReport:
    """Compare ``path`` with the PyTorch ``module`` on ``data``.

    Args:
        module: the exported module.
        path: the ONNX file.
        data: inputs of the module (for an export with embedded preprocessing: raw images, NCHW):
            an array, a list of arrays or a dict of arrays for several inputs, or an iterable of
            such batches.
        layers: whether to also compare the outputs of all submodules, to locate the source of a
            difference. Default False.
        batch_size: samples per batch. Default 32.

    Returns:
        The report; ``report.passed`` is the verdict.

    Raises:
        UnsupportedModelError: ``module`` is not a module.
        ExportError: ONNX Runtime can't run the file, the shapes of the outputs differ, or the data
            are empty or do not fit the module.

    Examples:
        >>> import numpy as np, torch, qat_lib.torch
        >>> module = torch.nn.Conv2d(1, 4, 3)
        >>> example = torch.zeros(1, 1, 8, 8)
        >>> path = qat_lib.torch.export_onnx(module, "conv.onnx", example_input=example).path
        >>> qat_lib.torch.check_parity(module, path, np.ones((3, 1, 8, 8), np.float32)).passed
        True
    """
    stored = in_float32(module)

    def open_reference(names: list[str]) -> ModuleReference:
        return ModuleReference(stored, names)

    return compare_with(open_reference, path, data, layers=layers, batch_size=batch_size)


class ModuleReference:
    """Reference that runs a module in inference mode.

    Args:
        module: module with float32 weights.
        layers: requested paths of submodules; other paths are ignored.
        example: arguments to fill with the arrays. Default None: each array is a positional
            argument.
    """

    framework = "PyTorch"
    layout = "NCHW"

    def __init__(
        self, module: nn.Module, layers: list[str], example: Example | None = None
    ) -> None:
        self.module = module
        self._example = example
        self._parts = {path: part for path, part in module.named_modules() if path in layers}
        self.layers = list(self._parts)
        self._names = list(inspect.signature(module.forward).parameters)
        first = next(iter((*module.parameters(), *module.buffers())), torch.empty(0))
        self._device = first.device
        self.output_count = 0

    def in_order(self, item: Any) -> list[Any]:
        """Return a batch as one array per argument, in forward's order.

        Raises:
            ExportError: a key of a dict is not an argument of forward.
        """
        if not isinstance(item, Mapping):
            return list(item) if isinstance(item, list | tuple) else [item]
        if not set(item) <= set(self._names):
            raise ExportError(
                f"Expected arrays for the arguments {self._names}. Received: "
                f"{sorted(map(str, item))}."
            )
        return [item[name] for name in self._names if name in item]

    def run(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of the module, then those of the layers, as arrays.

        The array of a layer with several outputs is empty.

        Raises:
            ExportError: the arrays do not fit the module.
        """
        tensors = [self._tensor(x) for x in inputs]
        # The recorded example has the structure of the call; the tensors replace its own in order.
        given = (
            self._example.filled(tensors)
            if self._example
            else Example(args=tuple(tensors), kwargs={})
        )
        with in_inference(self.module), self._watched() as found, torch.no_grad():
            try:
                outputs = self.module(*given.args, **given.kwargs)
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                shapes = [tuple(x.shape) for x in tensors]
                raise ExportError(
                    f"The module can't run on inputs of the shapes {shapes}: "
                    f"{describe_error(error)}. Pass the data as the module takes them."
                ) from error
        own = [x for x in torch.utils._pytree.tree_leaves(outputs) if is_tensor(x)]
        self.output_count = len(own)
        return [x.cpu().numpy() for x in (*own, *(found[path] for path in self.layers))]

    def _tensor(self, x: np.ndarray) -> torch.Tensor:
        if x.dtype.kind not in "biuf":
            raise ExportError(f"Expected numbers as inputs. Received: {x.dtype}.")
        array = x.astype(np.float32) if x.dtype.kind == "f" else x
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    @contextmanager
    def _watched(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield a dict of layer outputs by path, filled while the module runs."""
        found = dict.fromkeys(self.layers, torch.empty(0))
        handles = []
        for path, part in self._parts.items():

            def note(_: Any, __: Any, output: Any, path: str = path) -> None:
                if is_tensor(output):
                    found[path] = output.clone()  # a later operation may change it in place

            handles.append(part.register_forward_hook(note))
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()
