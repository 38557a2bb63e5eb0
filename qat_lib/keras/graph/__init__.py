"""Layer graphs and traits of Keras models."""
