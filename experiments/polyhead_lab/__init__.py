"""Experiments on claims of the literature: each cites a claim, measures it here, and gives a verdict."""
