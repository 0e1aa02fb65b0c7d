"""Model shapes as data."""
