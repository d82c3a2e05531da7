"""One layer of a stack, by name."""
