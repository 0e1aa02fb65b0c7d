"""Slow twins: plain Python that is obviously right, against which every fast path is compared."""
