"""Runs side by side, as MLflow knows them."""
