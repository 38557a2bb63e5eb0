"""Construction and training of models."""
