"""Simulation of an MoE block transfer by transfer, without traces."""

from moxtrace.engine.blocks.simulation import ReadyBlock, ready_block, simulate_block

__all__ = ["ReadyBlock", "ready_block", "simulate_block"]
