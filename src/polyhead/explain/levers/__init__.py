"""Levers: the model run in another way on the same text, and what that changes in its output.

Every lever runs the real model: on a copy of its modules that shares the weights, or through another cache,
input or sampling setting. Shapes: R rows of output that are compared, V tokens or classes.
"""
