"""The fixtures of training that tests of checkpoints use as well."""

from tests.train.conftest import corpus, unsynced

__all__ = ["corpus", "unsynced"]
