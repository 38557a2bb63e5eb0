"""Engine backend for TensorRT 8.6, 10.12 and newer, and 11."""

from qat_lib.engines.tensorrt.backend import TensorRTBackend

BACKEND = TensorRTBackend
