"""Experts with several replicas: which of them a token takes."""

from moxtrace.replicas.replicas import RULES, Hosts, Replicas, demand_on, hosts_as_rows

__all__ = ["RULES", "Hosts", "Replicas", "demand_on", "hosts_as_rows"]
