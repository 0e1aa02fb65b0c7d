"""Model shapes as data."""

from moxtrace.models.shape import ModelShape, load, names

__all__ = ["ModelShape", "load", "names"]
