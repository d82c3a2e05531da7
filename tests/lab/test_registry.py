import json
from pathlib import Path

from tests.lab.page_helpers import RESULT
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


def test_json_is_complete_and_without_nan():
    result = json.loads(json.dumps(RESULT.to_json(), allow_nan=False))
    assert [claim["is_supported"] for claim in result["claims"]] == [True, False, None, None]
    verdicts = ["held", "did not hold", "undecided", "undecided"]
    assert [claim["verdict"] for claim in result["claims"]] == verdicts
    plot, dots, table = result["figures"]
    assert [plot["kind"], dots["kind"], table["kind"]] == ["plot", "dots", "table"]
    assert plot["curves"][0] == {"name": "<x>", "points": [[1, 4.0], [2, None], [3, 2.0]]}
    assert dots["rows"]["two <b>"] == [None, 3.0]
    assert table["rows"] == [["<i>", 12000], ["b", 0.03125]]
