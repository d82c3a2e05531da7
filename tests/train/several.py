"""Old names of tests/train/ranks.py, for the tests of other directories."""

from tests.train.ranks import ROOT as ROOT
from tests.train.ranks import run_ranks as together  # noqa: F401
