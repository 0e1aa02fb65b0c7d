"""The report: one self-contained page about a sweep or a run."""
