"""Reader of ONNX files and their graphs, without TensorFlow or a runtime.

All access of the project to ONNX files goes through this package.
"""
