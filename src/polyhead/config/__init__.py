"""Configuration of the model, data, generation and training. Importing it does not import torch."""
