from tests.compare.compare_helpers import compare, read_rows

from polyhead.cli import main


def test_refused_and_failed_designs_are_rows(run_trials, capsys):
    options = ["--vary", "n_heads=3", "--vary", "lr=1e38"]
    rows = compare("toy", *options, budget="12steps")
    out = capsys.readouterr().out
    refused_row, failed_row = rows["n_heads=3"], rows["lr=1e38"]
    statuses = {name: row["status"] for name, row in rows.items()}
    assert statuses == {"base": "done", "n_heads=3": "refused", "lr=1e38": "failed"}
    assert refused_row["message"].startswith("model: d_model (16) must be divisible by n_heads (3)")
    assert "not finite" in failed_row["message"] and failed_row["loss"] is None
    assert "lr=1e38: failed: " in out and "n_heads=3: cannot be built: " in out
    compare("toy", *options, budget="12steps")
    assert run_trials == ["base.s1", "lr=1e38.s1"], "a divergence is a result, and not run again"


def test_trial_out_of_memory_is_run_again(run_trials, monkeypatch):
    def raise_memory_error(*args, **options):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("polyhead.compare.trial.run_training", raise_memory_error)
        assert main(["compare", "toy.yaml", "--budget", "1steps"]) == 1
        assert read_rows()["base"]["message"] == "out of memory"
    compare("toy")
    assert run_trials == ["base.s1"] * 2
