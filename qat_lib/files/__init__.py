"""Bounded, checked reading of untrusted files, and atomic writing."""
