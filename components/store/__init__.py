"""Storage of finished steps: atomic writes, content-based lookup."""
