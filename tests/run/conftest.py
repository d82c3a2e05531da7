from tests.cli.cli_helpers import cli as cli
from tests.run.run_helpers import run_copy as run_copy
from tests.run.run_helpers import run_dir as run_dir
