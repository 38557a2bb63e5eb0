"""The one place that opens ONNX files and reads their graphs.

Imports neither TensorFlow nor a runtime.
"""
