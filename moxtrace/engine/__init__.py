"""Simulation: the built-in event engine and the ASTRA-sim runner."""
