"""The tokenizers that tests of this package use."""

from tests.tokenizers.conftest import texts, trained

__all__ = ["texts", "trained"]
