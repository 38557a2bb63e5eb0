"""From an engine to a service: packages for inference servers, and a server."""
