"""A quantized model and its float form, compared call by call, in any framework."""
