"""Links and the event queue of the block simulation."""
