"""Keras front end."""
