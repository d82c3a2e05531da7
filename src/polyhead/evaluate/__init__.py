"""Metrics of a model, and the scores of baselines that were not trained."""
