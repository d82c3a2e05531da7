"""Generated text for the demo and for tests."""
