"""Calibration of every front end, in NumPy alone.

Histograms, methods and the collecting mode.
"""
