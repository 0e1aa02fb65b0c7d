"""Lowering: phases of transfers become the nodes of execution traces."""

from moxtrace.lowering.lower import Block, messages_of, token_order, traces_of

__all__ = ["Block", "messages_of", "token_order", "traces_of"]
