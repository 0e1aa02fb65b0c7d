"""Expert placement that keeps experts together which tokens choose together."""

from moxtrace.coactivation.placement import CoactivationGain, place_by_coactivation

__all__ = ["CoactivationGain", "place_by_coactivation"]
