"""A quantized model beside its float form, call by call, in any framework."""
