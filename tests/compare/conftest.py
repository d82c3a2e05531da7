"""A directory with small texts and recipes, and trials that run in this process."""

import os

import pytest
import torch
from tests.compare.compare_helpers import make_toy_plan, write_toy_files

from polyhead.compare import run, trial
from polyhead.compare.significance import SacrebleuTest
from polyhead.compare.trial import run_trial


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """A working directory with the texts and recipes of ``write_toy_files``."""
    write_toy_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # tests need no durable files
    return tmp_path


@pytest.fixture
def plan(workdir):
    """The plan of a comparison of the base alone."""
    return make_toy_plan(budget="600s", seeds=1, out=workdir / "out")


@pytest.fixture
def run_trials(workdir, monkeypatch):
    """Trials run in this process, with few resamples; the list of their names."""
    names, threads = [], torch.get_num_threads()

    def run_here(directory, stop):
        names.append(directory.name)
        run_trial(directory)
        torch.set_num_threads(threads)
        return 0

    monkeypatch.setattr(run, "run_subprocess", run_here)
    compute = SacrebleuTest._compare  # 10,000 permutations take most of the time of a comparison
    monkeypatch.setattr(
        SacrebleuTest,
        "_compare",
        lambda self, systems, **options: compute(self, systems, n_samples=50, **dict.fromkeys(options, 50)),
    )
    return names


@pytest.fixture
def no_baselines(monkeypatch):
    """Trials without baselines, so that designs that have hardly learned are compared."""
    monkeypatch.setattr(trial, "find_baselines", lambda task, run: {})
