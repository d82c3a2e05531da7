"""Tests of a second device, in processes of their own: a process that has such a device cannot be forked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parent
ROOT = DIRECTORY.parents[1]
FEW_TESTS = """
from tests.device.models import test_mixed_devices_raise, test_training_step_matches_the_cpu

test_training_step_matches_the_cpu("encoder-decoder", {"position": "rope", "feed_forward": "swiglu"})
test_mixed_devices_raise()
"""


def run_python(*arguments):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    process = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + process.stderr


def test_training_step_of_one_model():
    run_python("-c", FEW_TESTS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["models", "syncs", "runs", "trials"])
def test_second_device(name):
    options = ["-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", "--timeout=3000", "--all"]
    run_python("-m", "pytest", *options, str(DIRECTORY / f"{name}.py"))
