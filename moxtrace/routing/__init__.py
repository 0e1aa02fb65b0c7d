"""From demand to transfers: routing policies, link weights and link loads."""

from moxtrace.routing.policies import POLICIES, WEIGHTED_POLICIES, route

__all__ = ["POLICIES", "WEIGHTED_POLICIES", "route"]
