"""TensorRT 8.6, 10.12 and newer, and 11, behind the common engine interface."""
