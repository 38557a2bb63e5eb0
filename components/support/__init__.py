"""Shared helpers of all packages: events, credentials, disk errors, user code."""
