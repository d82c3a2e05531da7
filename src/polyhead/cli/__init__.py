"""The command line: one module per verb; torch is imported only by verbs that need it."""

from polyhead.cli.app import main

__all__ = ["main"]
