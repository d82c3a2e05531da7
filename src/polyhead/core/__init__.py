"""What every other package may use: no torch, and no part of a model."""
