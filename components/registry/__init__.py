"""The model registry: champions, and the one protocol that moves them."""
