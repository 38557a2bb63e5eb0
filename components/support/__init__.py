"""What every room may import: events, credentials, disk errors, user code."""
