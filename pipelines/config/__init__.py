"""Config of a run: reading, validation, schema."""
