"""What the evaluate step measures, one concern per module."""
