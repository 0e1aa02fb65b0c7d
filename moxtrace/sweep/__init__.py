"""Sweeps: many configurations, one table, and no silent failure among them."""

from moxtrace.sweep.drive import Outcome, run_sweep
from moxtrace.sweep.places import Given, Local, Place
from moxtrace.sweep.plan import Plan, PlannedRun, load_plan

__all__ = ["Given", "Local", "Outcome", "Place", "Plan", "PlannedRun", "load_plan", "run_sweep"]
