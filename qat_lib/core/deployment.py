"""Deployment: backend and CPU of an engine, and the integers that suit them."""

from __future__ import annotations

from dataclasses import dataclass

from qat_lib.options import Backend, BackendChoice, Cpu, CpuChoice


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Backend and CPU of an engine, from which all other choices about its integers follow.

    Args:
        backend: the backend; also the ``target`` of the export.
        cpu: kind of CPU (``qat_lib.options.Cpu``); None for TensorRT.

    Examples:
        >>> Deployment(backend="openvino", cpu="avx2").unsigned
        True
    """

    backend: Backend
    cpu: Cpu | None = None

    @classmethod
    def on(cls, backend: BackendChoice = "auto", cpu: CpuChoice = "auto") -> Deployment:
        """Return the deployment with ``"auto"`` resolved for this machine.

        Args:
            backend: the backend; ``"auto"`` (default): the first of TensorRT, OpenVINO and ONNX
                Runtime that works here.
            cpu: the kind of CPU; ``"auto"`` (default): this machine's.

        Raises:
            BackendUnavailableError: the backend is ``"auto"``, and none works here.
        """
        # Imported on first use, so that this module stays cheap to import.
        from qat_lib.engines import choose_backend, cpu_kind, get_backend

        chosen = choose_backend("auto") if backend == "auto" else backend
        if not get_backend(chosen).supports("cpu"):
            return cls(backend=chosen)
        return cls(backend=chosen, cpu=cpu_kind() if cpu == "auto" else cpu)

    @property
    def unsigned(self) -> bool:
        """Whether non-negative activations get unsigned integers (not supported by TensorRT)."""
        from qat_lib.engines import get_backend

        return get_backend(self.backend).supports("unsigned")
