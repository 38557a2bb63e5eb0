"""The ``qatline`` command."""
