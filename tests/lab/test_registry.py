from pathlib import Path

from tests.lab.run_helpers import NAMES

from polyhead.lab.registry import EXPERIMENTS, LabContext, describe_experiment

ROOT = Path(__file__).parents[2]


def test_the_experiments_are_these():
    assert EXPERIMENTS.names() == sorted(NAMES)


def test_sizes_and_seeds_of_quick_and_full_runs():
    assert LabContext(5).make_seeds(3) == [5, 6, 7]
    assert LabContext(5, quick=True).make_seeds(3) == [5, 6]
    assert (LabContext().pick_size("full", "quick"), LabContext(quick=True).pick_size("full", "quick")) == (
        "full",
        "quick",
    )


def test_the_guide_of_the_lab_tells_of_every_experiment():
    page = (ROOT / "docs/lab.md").read_text()
    for name in NAMES:
        assert f"\n## {name}\n" in page
        assert f"polyhead experiments {name}\n" in page
        assert describe_experiment(name)
