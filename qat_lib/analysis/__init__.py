"""What TensorRT will make of an ONNX Q/DQ graph, said without TensorRT and without a GPU."""
