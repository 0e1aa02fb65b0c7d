"""Recordings of expert popularity: one reader per format, one canonical file."""

from moxtrace.recordings.canonical import write_canonical
from moxtrace.recordings.reader import formats, read
from moxtrace.recordings.recording import LayerCounts, LayerSkew, Recording

__all__ = ["LayerCounts", "LayerSkew", "Recording", "formats", "read", "write_canonical"]
