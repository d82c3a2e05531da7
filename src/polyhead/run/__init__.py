"""Open a trained run or a published checkpoint and use it."""
