"""Simulation of execution traces."""

from moxtrace.engine.traces.simulate import simulate

__all__ = ["simulate"]
