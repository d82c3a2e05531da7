"""Training tasks: batches, loss and metrics of each."""
