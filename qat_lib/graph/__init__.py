"""What a Keras model is made of: its calls, its layers, and what each of them does."""
