"""Write and read a run's checkpoints: tensors, optimizer state, manifest and rotation."""
