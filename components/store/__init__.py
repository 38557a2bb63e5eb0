"""Finished steps on disk: written whole, found again by their content."""
