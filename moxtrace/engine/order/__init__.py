"""The order in which ASTRA-sim issues nodes that became free together."""
