"""Apply a plan: rebuild a model with quantizers and wrappers."""
