"""The scheduler: requests, continuous batching, prefill and decoding steps."""
