"""From demand to transfers: routing policies, link weights and link loads."""

from moxtrace.routing.policies import POLICIES, TABLE_POLICIES, UNICAST_POLICIES, WEIGHTED_POLICIES, route

__all__ = ["POLICIES", "TABLE_POLICIES", "UNICAST_POLICIES", "WEIGHTED_POLICIES", "route"]
