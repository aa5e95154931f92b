"""A merge on a sample while somebody chooses its parameters: measured in memory, kept for minutes."""
