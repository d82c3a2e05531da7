"""The command line: a verb a file, and torch only for the verb that needs it."""

from polyhead.cli.app import main

__all__ = ["main"]
