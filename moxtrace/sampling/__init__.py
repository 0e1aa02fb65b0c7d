"""Sampling: from the popularity of experts to the top-K set of every token."""

from moxtrace.sampling.conditional_poisson import ConditionalPoisson, inclusion_probabilities
from moxtrace.sampling.deal import sample_tokens

__all__ = ["ConditionalPoisson", "inclusion_probabilities", "sample_tokens"]
