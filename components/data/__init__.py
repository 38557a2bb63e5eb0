"""Image sources, their checks and their splits."""
