"""Simulation of an MoE block transfer by transfer, without traces."""

from moxtrace.engine.blocks import simulation
from moxtrace.engine.limits import bounded

__all__ = ["simulate_block"]

simulate_block = bounded(simulation.simulate_block)
