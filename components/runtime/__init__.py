"""What every step shares: artifacts and their cache, progress events, data reading, tracking."""
