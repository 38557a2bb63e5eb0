"""Model registry: champions, and the protocol that replaces them."""
