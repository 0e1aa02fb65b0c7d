"""Lower bounds on what any multicast routing must put on the busiest link."""

from moxtrace.bound.best import Bounds, bounds_of

__all__ = ["Bounds", "bounds_of"]
