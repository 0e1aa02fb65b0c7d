"""Verify: what the traces of a run directory must satisfy, checked from the files alone."""

from moxtrace.verify.verify import verify_run

__all__ = ["verify_run"]
