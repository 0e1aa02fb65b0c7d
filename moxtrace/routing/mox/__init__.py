"""The policy ``mox``: every source keeps to its share of each link, so that nobody need see the total."""
