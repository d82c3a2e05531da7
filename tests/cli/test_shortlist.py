"""A shortlist is made, told of and used; what cannot have one is told in a line."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import polyhead
from polyhead.cli import main
from polyhead.core.errors import UserError

SOURCE = [
    "ein hund bellt .",
    "zwei hunde bellen .",
    "ein mann singt .",
    "zwei frauen singen .",
    "hunde singen .",
]
TARGET = ["a dog barks .", "two dogs bark .", "a man sings .", "two women sing .", "dogs sing ."]


@pytest.fixture
def own(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "own"))


@pytest.fixture
def pairs(tmp_path: Path) -> list[str]:
    for name, lines in (("a.de", SOURCE), ("a.en", TARGET)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines * 8))
    return [str(tmp_path / "a.de"), str(tmp_path / "a.en")]


def test_it_is_learned_measured_kept_and_used(
    own: Path, pairs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shortlist", str(own), *pairs, "--per-token", "3", "--frequent", "5"]) == 0
    out = capsys.readouterr().out
    assert "learned from  36 pairs\n" in out
    loaded = polyhead.load(own)
    made = loaded.get_shortlist()
    assert made is not None
    held = loaded.tokenizer.encode(SOURCE[:4])
    mean = sum(len(made.select_ids(line)) for line in held) / 4
    assert f"allowed per text  {mean:,.0f} of {loaded.config.vocab_size:,} tokens on average\n" in out
    said = loaded.tokenizer.target_tokenizer.encode(TARGET[:4])
    inside = [
        token in made.select_ids(line) for line, target in zip(held, said, strict=True) for token in target
    ]
    assert f"references  {sum(inside) / len(inside):.1%} of their tokens are allowed\n" in out
    whole, few = (loaded.translate(SOURCE, shortlist=shortlist) for shortlist in (False, True))
    same = sum(a == b for a, b in zip(whole[:4], few[:4], strict=True))
    assert re.search(rf"translations  {same} of 4 unchanged, \d+\.\d\d times as fast\n", out)
    assert whole != few  # random weights say anything
    assert main(["translate", str(own), pairs[0], "--shortlist", "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text().splitlines() == [text.replace("\n", " ") for text in few] * 8
    assert main(["eval", str(own), *pairs, "--shortlist", "--output", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again").read_text() == (tmp_path / "out").read_text()
    assert loaded.engine(shortlist=True).submit(SOURCE[1]).collect_texts() == [few[1]]


def test_from_a_text_alone_it_learns_what_the_run_says(
    own: Path, pairs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shortlist", str(own), pairs[0], "--per-token", "200", "--frequent", "300"]) == 0
    assert "references  100.0% of their tokens are allowed" in capsys.readouterr().out
    loaded = polyhead.load(own)
    greedy = [loaded.translate(SOURCE, beam_size=1, shortlist=shortlist) for shortlist in (False, True)]
    assert greedy[0] == greedy[1]


def test_every_end_may_always_come(own: Path, pairs: list[str]) -> None:
    run = polyhead.load(own)
    run.generation = run.generation.model_copy(update={"stop_tokens": ("<mask>",)})
    run.save(own)
    assert main(["shortlist", str(own), *pairs, "--per-token", "1", "--frequent", "1"]) == 0
    made = polyhead.load(own).get_shortlist()
    assert made is not None
    assert {run.tokenizer.eos_id, run.tokenizer.token_to_id("<mask>")} <= {*made.frequent.tolist()}


def test_pairs_that_the_model_cannot_hold_are_left_out_and_told(
    own: Path, pairs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each token of a pair is learned from beside each of its other side: one line of a whole book is no
    pair.
    """
    for path in pairs:
        lines = Path(path).read_text().splitlines()
        Path(path).write_text("".join(f"{line}\n" for line in [lines[0] * 1000, *lines]))
    assert main(["shortlist", str(own), *pairs]) == 0
    told = capsys.readouterr()
    most = polyhead.load(own).config.max_len - 1
    assert f"polyhead: 1 pairs have more than {most} tokens per side: skipped\n" in told.err
    assert "learned from  36 pairs\n" in told.out


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            ["translate", "RUN", "--shortlist"],
            "this run has no shortlist; create one: polyhead shortlist RUN",
        ),
        (
            ["shortlist", "RUN"],
            "this run has no recipe with data files; pass files: polyhead shortlist RUN SOURCE TARGET",
        ),
        (
            ["shortlist", "RUN", "FEW"],
            "a shortlist requires at least two pairs, better 10,000; got 1",
        ),
        (["shortlist", "RUN", "nowhere.de"], "no file 'nowhere.de'"),
        (["shortlist", "gone", "FEW"], "no run directory 'gone'"),
    ],
)
def test_what_cannot_be_is_told(
    typed: list[str], message: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "few").write_text("ein hund\n")
    names = {"RUN": str(tiny), "FEW": str(tmp_path / "few")}
    assert main([names.get(word, word) for word in typed]) == 2
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1
    assert not (tiny / "shortlist.safetensors").exists()


def test_none_is_written_over_and_a_damaged_one_is_told_where_it_is_wanted(
    own: Path, pairs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "shortlist.safetensors").write_bytes(b"nothing")
    assert main(["translate", str(own), pairs[0]]) == 0
    assert main(["translate", str(own), pairs[0], "--shortlist"]) == 2
    assert "shortlist.safetensors is damaged or truncated" in capsys.readouterr().err
    assert main(["shortlist", str(own), *pairs]) == 2
    there = own / "shortlist.safetensors"
    assert capsys.readouterr().err == f"polyhead: {there} already exists; to build another, remove it first\n"
    assert there.read_bytes() == b"nothing"
    there.unlink()
    assert main(["shortlist", str(own), *pairs]) == 0
    assert main(["translate", str(own), pairs[0], "--shortlist"]) == 0


def test_several_runs_together_have_none(tiny: Path) -> None:
    several = polyhead.load([tiny, tiny])
    with pytest.raises(UserError, match="a shortlist is for a single run, not an ensemble"):
        several.translate(["ein hund"], shortlist=True)
