"""Data-parallel training in several processes."""
