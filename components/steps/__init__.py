"""The eight steps of the pipeline, one module each."""
