from pathlib import Path

import pytest
from tests.cli.demo_run_helpers import REPORT, weights
from tests.cli.demo_run_helpers import finished as finished
from tests.cli.demo_run_helpers import trained_demo as trained_demo
from tests.cli.demo_run_helpers import workdir as workdir

pytest.importorskip("babel")

WEIGHTS = Path("runs/demo/model.safetensors")


def test_finished_demo_is_reused_or_trained_again(finished, cli):
    times = [path.stat().st_mtime_ns for path in (WEIGHTS, REPORT)]
    out, err = cli("demo", "--translate", "in 3 days")
    assert out.count("\n") == 1 and err == ""
    assert [path.stat().st_mtime_ns for path in (WEIGHTS, REPORT)] == times
    assert "reused; --again trains a new one" in cli("demo").out
    message = cli.error("demo", "--target", "de", "--out", "runs/demo", "--again")
    assert message.startswith("runs/demo has a demo from en to zh; choose another directory")
    assert cli("demo", "--target", "en", code=2).out == ""  # no introduction before a refusal
    assert WEIGHTS.stat().st_mtime_ns == times[0]
    old_weights, time = weights(), WEIGHTS.stat().st_mtime_ns
    first = cli("demo", "--translate", "in 3 days").out
    second = cli("demo", "--again", "--translate", "in 3 days")
    assert second.out == first and "Exact match" in second.err
    assert WEIGHTS.stat().st_mtime_ns != time and weights() == old_weights
