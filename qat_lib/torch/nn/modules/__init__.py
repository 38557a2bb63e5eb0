"""Quantized modules, one file for each family."""
