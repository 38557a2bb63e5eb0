"""Comparison of runs from their records in MLflow."""
