"""Models made and trained."""
