"""Compare model designs trained on the same text in the same order, with equal seeds and an equal budget."""
