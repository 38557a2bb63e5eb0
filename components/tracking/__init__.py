"""Tracking of steps and runs in MLflow."""
