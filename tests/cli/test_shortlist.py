"""Tests of cli/shortlist.py: a shortlist is built, measured, saved and used."""

import re
import shutil
from pathlib import Path

import pytest

import polyhead
from polyhead.core.errors import UserError

SOURCE = ["ein hund bellt .", "zwei hunde bellen .", "ein mann singt .", "zwei frauen singen ."]
SOURCE += ["hunde singen ."]
TARGET = ["a dog barks .", "two dogs bark .", "a man sings .", "two women sing .", "dogs sing ."]


@pytest.fixture
def run_dir(tiny, tmp_path):
    return Path(shutil.copytree(tiny, tmp_path / "run"))


@pytest.fixture
def pairs(tmp_path):
    for name, lines in (("a.de", SOURCE), ("a.en", TARGET)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines * 8))
    return [tmp_path / "a.de", tmp_path / "a.en"]


def test_shortlist_is_measured_saved_and_used(run_dir, pairs, tmp_path, cli):
    out = cli("shortlist", run_dir, *pairs, "--per-token", 3, "--frequent", 5).out
    assert "learned from  36 pairs\n" in out
    run = polyhead.load(run_dir)
    shortlist = run.get_shortlist()
    allowed = [shortlist.select_ids(ids) for ids in run.tokenizer.encode(SOURCE[:4])]
    mean = sum(map(len, allowed)) / 4
    assert f"allowed per text  {mean:,.0f} of {run.config.vocab_size:,} tokens on average\n" in out
    targets = run.tokenizer.target_tokenizer.encode(TARGET[:4])
    is_covered = [token in ids for ids, target in zip(allowed, targets, strict=True) for token in target]
    assert f"references  {sum(is_covered) / len(is_covered):.1%} of their tokens are allowed\n" in out
    free, with_shortlist = (run.translate(SOURCE, shortlist=shortlist) for shortlist in (False, True))
    n_same = sum(a == b for a, b in zip(free[:4], with_shortlist[:4], strict=True))
    assert re.search(rf"translations  {n_same} of 4 unchanged, \d+\.\d\d times as fast\n", out)
    assert free != with_shortlist  # the weights are random
    cli("translate", run_dir, pairs[0], "--shortlist", "--output", tmp_path / "out")
    assert (tmp_path / "out").read_text().splitlines() == [t.replace("\n", " ") for t in with_shortlist] * 8
    cli("eval", run_dir, *pairs, "--shortlist", "--output", tmp_path / "evaluated")
    assert (tmp_path / "evaluated").read_text() == (tmp_path / "out").read_text()
    assert run.engine(shortlist=True).submit(SOURCE[1]).collect_texts() == [with_shortlist[1]]


def test_stop_tokens_are_always_allowed(run_dir, pairs, cli):
    run = polyhead.load(run_dir)
    run.generation = run.generation.model_copy(update={"stop_tokens": ("<mask>",)})
    run.save(run_dir)
    cli("shortlist", run_dir, *pairs, "--per-token", 1, "--frequent", 1)
    frequent = polyhead.load(run_dir).get_shortlist().frequent.tolist()
    assert {run.tokenizer.eos_id, run.tokenizer.token_to_id("<mask>")} <= {*frequent}
    # a source alone is paired with its translations
    (run_dir / "shortlist.safetensors").unlink()
    out = cli("shortlist", run_dir, pairs[0], "--per-token", 200, "--frequent", 300).out
    assert "references  100.0% of their tokens are allowed" in out
    run = polyhead.load(run_dir)
    free, limited = (run.translate(SOURCE, beam_size=1, shortlist=value) for value in (False, True))
    assert free == limited


def test_too_long_pairs_are_skipped_and_counted(run_dir, pairs, cli):
    """Every token of a pair is counted with every token of its other side: a book in one line is no pair."""
    for path in pairs:
        lines = path.read_text().splitlines()
        path.write_text("".join(f"{line}\n" for line in [lines[0] * 1000, *lines]))
    out, err = cli("shortlist", run_dir, *pairs)
    max_len = polyhead.load(run_dir).config.max_len - 1
    assert f"polyhead: 1 pairs have more than {max_len} tokens per side: skipped\n" in err
    assert "learned from  36 pairs\n" in out


def test_damaged_shortlist_is_refused_and_not_overwritten(run_dir, pairs, cli):
    path = run_dir / "shortlist.safetensors"
    path.write_bytes(b"nothing")
    cli("translate", run_dir, pairs[0])
    message = cli.error("translate", run_dir, pairs[0], "--shortlist")
    assert "shortlist.safetensors is damaged or truncated" in message
    message = cli.error("shortlist", run_dir, *pairs)
    assert message == f"{path} already exists; to build another, remove it first"
    assert path.read_bytes() == b"nothing"
    path.unlink()
    cli("shortlist", run_dir, *pairs)
    cli("translate", run_dir, pairs[0], "--shortlist")
    with pytest.raises(UserError, match="a shortlist is for a single run, not an ensemble"):
        polyhead.load([run_dir, run_dir]).translate(["ein hund"], shortlist=True)
