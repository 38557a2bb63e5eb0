"""Calibration for every front end, in NumPy alone: histograms, methods and the collecting mode."""
