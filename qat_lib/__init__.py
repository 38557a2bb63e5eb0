"""Quantization-aware training for Keras 3, from Q/DQ placement to a verified ONNX graph and its engine."""
