"""Exceptions of qatline.

    QatlineError                      base; ``exit_code`` is what a command ends with
    ├── ConfigError                   a config, an option or an argument is wrong (exit code 2)
    ├── SpecError                     a QuantizationSpec or a custom Q/DQ case is wrong
    ├── UnsupportedModelError         the model can't be quantized as it is
    ├── PlanError                     a QuantizationPlan does not fit the model
    ├── CalibrationError              calibration data is missing or unusable
    │   ├── NothingCollectedError     a calibrator has seen no data (torch.calib)
    │   └── ShapeChangedError         a calibrator's tensors changed their channels (torch.calib)
    ├── DataError                     a data set is missing, broken or inconsistent
    ├── ExportError                   the ONNX export failed, or an ONNX file can't be used
    │   ├── NewerOperatorError        the operator set lacks an operator of the module (torch.older_opset)
    │   └── VerificationError         the exported graph deviates from the plan
    ├── EngineError                   anything about engines
    │   ├── BackendUnavailableError   the backend's library, driver or device is not there
    │   ├── EngineBuildError          the build failed
    │   ├── EngineLoadError           the engine file can't be used here
    │   └── EngineBusyError           more callers at once than the engine serves
    ├── MissingPackageError           a package of an extra is not installed
    ├── StorageError                  local or remote storage failed
    ├── TrackingError                 the tracking server failed
    │   └── LockLostError             another process took a promotion's lock (qatline.components.registry.lock)
    ├── StepError                     a pipeline step failed
    │   ├── StepStoppedError          its process ended with an error (qatline.pipelines.run.launch)
    │   └── TrainJobError             its TrainJob failed or disappeared (qatline.components.trainjob.launcher)
    ├── KubernetesError               the Kubernetes API failed or refused (qatline.components.trainjob.kubernetes_api)
    ├── RunFailedError                a run ended before its result (qatline.pipelines.run.local)
    ├── RunInterruptedError           a signal ended the run (qatline.pipelines.run.local)
    │   └── HopelessTrialError        the pruner ended a trial (qatline.pipelines.sweep.runner)
    ├── SweepInterruptedError         a signal ended the sweep (qatline.pipelines.sweep.runner)
    └── ClusterError                  the Kubeflow server failed or refused (qatline.pipelines.cluster.connection)
        └── ClusterRunError           a run there failed or is late (qatline.pipelines.cluster.progress)

Errors with a module are defined there, all others here. Messages give the expected and the
received value, and the remedy.
"""

from __future__ import annotations


class QatlineError(Exception):
    """Base of every exception that qatline raises on purpose."""

    exit_code = 1


class ConfigError(QatlineError, ValueError):
    """A config value, an option or an argument is wrong."""

    exit_code = 2


class SpecError(QatlineError, ValueError):
    """A quantization spec or a custom Q/DQ case is wrong."""


class UnsupportedModelError(QatlineError, ValueError):
    """The model can't be quantized as it is."""


class PlanError(QatlineError, ValueError):
    """A quantization plan does not fit its model."""


class CalibrationError(QatlineError, ValueError):
    """Calibration data is missing or unusable."""


class DataError(QatlineError, ValueError):
    """A data set is missing, broken or inconsistent."""


class ExportError(QatlineError, RuntimeError):
    """The ONNX export failed."""


class VerificationError(ExportError):
    """The exported graph deviates from the plan."""


class EngineError(QatlineError, RuntimeError):
    """Anything that goes wrong with an engine."""


class BackendUnavailableError(EngineError):
    """The backend's library, driver or device is not there."""


class EngineBuildError(EngineError):
    """The engine build failed."""


class EngineLoadError(EngineError):
    """The engine file can't be used on this machine or is damaged."""


class EngineBusyError(EngineError):
    """Too many concurrent requests; the same request may succeed later."""


class MissingPackageError(QatlineError, ImportError):
    """A package that one of qatline's extras brings is not installed."""


class StorageError(QatlineError, OSError):
    """Local or remote storage failed."""


class TrackingError(QatlineError, RuntimeError):
    """The tracking server failed."""


class StepError(QatlineError, RuntimeError):
    """A pipeline step failed."""
