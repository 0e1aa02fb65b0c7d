"""Networks: the graph type, its builders, readers and writers."""
