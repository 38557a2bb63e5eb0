"""Shared by every step: artifact cache, progress events, data reading, tracking."""
