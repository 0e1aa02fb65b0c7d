"""Routing: demand to trees of links, one kernel per policy."""
