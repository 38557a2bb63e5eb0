"""What every front end calibrates with: histograms, methods, the collecting mode. NumPy alone."""
