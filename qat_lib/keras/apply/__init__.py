"""Apply a plan: rebuild the model with its quantizers and wrappers."""
