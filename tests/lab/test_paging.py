import json
import statistics

from tests.lab.caches_helpers import SENTENCES, make_run

from polyhead.cli import main


def test_claim_reports_lengths_of_text(tmp_path):
    run = make_run()
    run.save(tmp_path / "run")
    (tmp_path / "t.txt").write_text("\n".join(SENTENCES) + "\n\n")
    options = ["--run", str(tmp_path / "run"), "--text", str(tmp_path / "t.txt"), "--limit", "2"]
    assert main(["experiments", "paging", *options, "--quick", "--out", str(tmp_path)]) == 0
    text = json.loads((tmp_path / "paging.json").read_text())["claims"][0]["measurement"]
    lengths = [len(ids) + 1 for ids in run.tokenizer.encode(SENTENCES)]
    waste = 1 - statistics.fmean(lengths) / max(lengths)
    assert f"Rows of {max(lengths)} tokens, the longest of 3" in text
    assert f"{100 * waste:.1f} % empty" in text
