"""The config of a run: read, checked, described."""
