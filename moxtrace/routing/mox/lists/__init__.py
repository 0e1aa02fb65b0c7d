"""Trees of ``mox`` on any number of nodes."""
