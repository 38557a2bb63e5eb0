"""Graph of a Keras model: calls, layers, and what each does."""
