"""How good a model is against the scores of guesses that have learned nothing."""
