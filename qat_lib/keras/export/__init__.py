"""Export from Keras to ONNX: conversion and parity check."""

from qat_lib.keras.export.export import export_onnx
from qat_lib.keras.export.parity import check_parity

__all__ = ["check_parity", "export_onnx"]
