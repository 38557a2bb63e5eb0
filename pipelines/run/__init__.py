"""Local run of a pipeline: folder, processes, result."""
