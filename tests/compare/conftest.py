import os

import pytest
import torch
from tests.compare.compare_helpers import make_toy_plan, write_toy_files

from polyhead.compare import run, trial
from polyhead.compare.significance import SacrebleuTest
from polyhead.compare.trial import run_trial
from polyhead.train.report import RunReport


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    write_toy_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # tests need no durable files
    return tmp_path


@pytest.fixture
def plan(workdir):
    return make_toy_plan(budget="600s", seeds=1, out=workdir / "out")


@pytest.fixture
def few_resamples(monkeypatch):
    """100 permutations and resamples instead of 10,000 and 1,000, which take most of the time."""
    compare = SacrebleuTest._compare

    def compare_few(self, systems, **options):
        return compare(self, systems, n_samples=100, **dict.fromkeys(options, 100))

    monkeypatch.setattr(SacrebleuTest, "_compare", compare_few)


@pytest.fixture
def run_trials(workdir, few_resamples, monkeypatch):
    """Trials run in this process, without report pages; the list of their names."""
    names, threads = [], torch.get_num_threads()

    def run_here(directory, stop):
        names.append(directory.name)
        run_trial(directory)
        torch.set_num_threads(threads)
        return 0

    monkeypatch.setattr(run, "run_subprocess", run_here)
    monkeypatch.setattr(RunReport, "_try_or_warn", lambda self, work: None)
    return names


@pytest.fixture
def no_baselines(monkeypatch):
    """Trials without baselines, so that designs that have hardly learned are compared."""
    monkeypatch.setattr(trial, "find_baselines", lambda task, run: {})
