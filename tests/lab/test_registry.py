from pathlib import Path

from tests.lab.run_helpers import NAMES

from polyhead_lab.registry import EXPERIMENTS, LabContext, describe_experiment


def test_every_experiment_is_registered_and_documented():
    assert EXPERIMENTS.names() == NAMES
    page = (Path(__file__).parents[2] / "docs/lab.md").read_text()
    for name in NAMES:
        assert f"\n## {name}\n" in page
        assert f"polyhead experiments {name}\n" in page
        assert describe_experiment(name)
    # quick runs have fewer seeds and other sizes
    full, quick = LabContext(5), LabContext(5, quick=True)
    assert (full.make_seeds(3), quick.make_seeds(3)) == ([5, 6, 7], [5, 6])
    assert [context.pick_size("full", "quick") for context in (full, quick)] == ["full", "quick"]
