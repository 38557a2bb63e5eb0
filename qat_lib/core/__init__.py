"""Neutral core: spec, plan, selection and ranges."""
