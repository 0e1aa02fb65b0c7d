"""Simulation of execution traces."""

from moxtrace.engine.traces.simulation import simulate

__all__ = ["simulate"]
