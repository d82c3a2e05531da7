"""Training in several processes: data, tensor, pipeline and context parallelism."""
