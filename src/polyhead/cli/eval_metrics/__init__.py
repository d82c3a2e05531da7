"""Evaluations of ``polyhead eval``: a module for each kind of run, and one that chooses among them."""
