"""Designs side by side on the same text: same order of the data, same seeds, equal budget."""
