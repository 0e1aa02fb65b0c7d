"""Model shapes as data."""

from moxtrace.models.shape import ModelShape, load, names, unknown

__all__ = ["ModelShape", "load", "names", "unknown"]
