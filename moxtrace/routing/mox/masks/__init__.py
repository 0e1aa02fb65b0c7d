"""Trees of ``mox`` on at most 64 nodes."""
