"""A text walked through a model, number by number: the data of ``polyhead explain``, and its page."""
