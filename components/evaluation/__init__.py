"""Measurements of the evaluate step, one concern per module."""
