"""Fixtures of the tests of proposed recipes."""

from tests.autoconfig.propose_recipe_helpers import workdir as workdir
from tests.cli.cli_helpers import cli as cli
