"""Utilities that every other package may use; without torch and without model parts."""
