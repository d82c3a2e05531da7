"""Sample outputs of a model for the report of its run: ``take_samples(task, run)``."""

from polyhead.train.samples import classes, hidden_tokens, text
from polyhead.train.samples.base import take_samples

__all__ = ["classes", "hidden_tokens", "take_samples", "text"]
