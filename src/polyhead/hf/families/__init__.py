"""One module per model family: its config keys and weight names."""
