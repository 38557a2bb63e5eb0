"""Graph of a model: calls, layers and their traits."""
