"""The one place where ONNX files are opened and their graphs are read. Imports neither TensorFlow nor a runtime."""
