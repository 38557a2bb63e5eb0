"""Choices and checks of the ONNX export."""
