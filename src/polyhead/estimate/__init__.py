"""Estimate the cost of a run before it starts: parameters, operations, memory, communication and time."""
