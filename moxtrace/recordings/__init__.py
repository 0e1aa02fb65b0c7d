"""Recordings of expert popularity: one reader per format, one canonical file."""
