"""Simulation of an MoE block transfer by transfer, without traces."""

from moxtrace.engine.blocks.simulation import simulate_block

__all__ = ["simulate_block"]
