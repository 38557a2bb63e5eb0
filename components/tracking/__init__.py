"""MLflow: what a step records, and where."""
