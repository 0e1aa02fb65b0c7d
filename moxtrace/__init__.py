"""Recorded expert popularity and a topology to MoX-routed, per-link Chakra execution traces."""

__version__ = "0.1.0"
