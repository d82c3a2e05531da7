"""What a model learns: each task knows its batches, its loss and its measures."""
