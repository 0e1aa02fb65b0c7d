"""Traces made ready for the event loop."""
