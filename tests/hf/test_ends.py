"""Several tokens that end a text: the reference stops at any of them, and so do we in
every way of decoding.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hf.conftest import TEXTS, make
from tests.hf.families.causal_cases import LLAMA
from tests.hf.families.seq2seq import SOURCES, published
from tests.hf.families.seq2seq_cases import CASES as TRANSLATORS
from transformers import AutoModelForCausalLM, AutoTokenizer

import polyhead as ph
from polyhead import Choice
from polyhead.cli import main
from polyhead.tokenizers.tokenizer import Tokenizer

EOS, LONGEST = 2, 12


def said(file: Path, **values: Any) -> None:
    """More of what a file of JSON says."""
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@torch.no_grad()
def greedy(model: Any, ids: list[int]) -> list[int]:
    """Every likeliest token, of which none is an end."""
    text = list(ids)
    for _ in range(LONGEST):
        text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    return text[len(ids) :]


@pytest.fixture
def writer(tmp_path: Path) -> Path:
    """A small Llama with five more ends, each of which it says early after some text."""
    where = tmp_path / "llama"
    model, reader = make(where, "LlamaConfig", **LLAMA), Tokenizer.load(where)
    after = [greedy(model, ids) for ids in reader.encode(TEXTS)]
    said_early = dict.fromkeys(token for row in after for token in row[1:6])
    others = [token for token in said_early if token not in {EOS, *(row[0] for row in after)}][:5]
    assert len(others) == 5
    said(where / "generation_config.json", eos_token_id=[EOS, *others])
    return where


def ends(where: Path) -> list[int]:
    found: list[int] = json.loads((where / "generation_config.json").read_text())["eos_token_id"]
    return found


def words(new: list[int], among: list[int]) -> list[int]:
    """What was said before the first end."""
    return new[: next((i for i, token in enumerate(new) if token in among), len(new))]


@pytest.mark.parametrize("guess", [None, Choice("lookup"), "draft"])
def test_greedy_text_ends_where_that_of_the_reference_does(writer: Path, guess: Any, tmp_path: Path) -> None:
    theirs, reader = AutoModelForCausalLM.from_pretrained(writer), Tokenizer.load(writer)
    assert main(["import", str(writer), str(tmp_path / "run")]) == 0
    choice = Choice("draft", run=str(tmp_path / "run")) if guess == "draft" else guess
    wanted, among, last = [], ends(writer), []
    for text in TEXTS:
        ids = torch.tensor(reader.encode([text]))
        new = theirs.generate(ids, max_new_tokens=LONGEST, pad_token_id=0)[0, ids.shape[1] :].tolist()
        last.append(new[-1])
        wanted.append(decode_whole(reader, words(new, among)))
    assert {*last} & {*among[1:]}
    for run in (ph.load(writer), ph.load(tmp_path / "run")):
        assert run.generate(TEXTS, max_new_tokens=LONGEST, speculative=choice) == wanted
        if guess is None:
            engine = run.engine()
            streams = [engine.submit(text, max_new_tokens=LONGEST) for text in TEXTS]
            assert [stream.collect_texts() for stream in streams] == [[text] for text in wanted]
            reasons = [["stop" if token in among else "length"] for token in last]
            assert [stream.finish_reasons for stream in streams] == reasons


def decode_whole(reader: Tokenizer, tokens: list[int]) -> str:
    """The text without a character at its end that is not whole."""
    return reader.decode([tokens])[0].rstrip("\ufffd")


@pytest.mark.parametrize("least", [0, 6])
@pytest.mark.parametrize("early", [False, True, "never"])
@pytest.mark.parametrize("beams", [1, 2, 4])
def test_beams_end_where_those_of_the_reference_do(writer: Path, beams: int, early: Any, least: int) -> None:
    theirs, reader = AutoModelForCausalLM.from_pretrained(writer), Tokenizer.load(writer)
    run, among = ph.load(writer), ends(writer)
    rest = {"length_penalty": 0.6, "early_stopping": early}
    wishes = rest | {"beam_size": beams, "min_new_tokens": least, "max_new_tokens": LONGEST}
    ours = run.hypotheses(TEXTS, n_best=beams, **wishes)
    texts, stopped = run.generate(TEXTS, n=beams, **wishes), 0
    for text, found, written in zip(TEXTS, ours, texts, strict=True):
        ids = torch.tensor(reader.encode([text]))
        out = theirs.generate(
            ids, num_beams=beams, num_return_sequences=beams, max_new_tokens=LONGEST, min_new_tokens=least,
            do_sample=False, pad_token_id=0, output_scores=True, return_dict_in_generate=True,
            **(rest if beams > 1 else {}),
        )  # fmt: skip
        wanted = [words(row[ids.shape[1] :].tolist(), among) for row in out.sequences]
        assert [h.tokens for h in found] == wanted
        assert written == [decode_whole(reader, row) for row in wanted]
        assert min(map(len, wanted)) >= least
        stopped += sum(len(row) < LONGEST for row in wanted)
        if beams > 1:
            torch.testing.assert_close(
                torch.tensor([h.score for h in found]), out.sequences_scores, rtol=1e-4, atol=1e-4
            )
        assert run.engine().submit(text, n=beams, **wishes).collect_texts() == written
    assert stopped > 1


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(("name", "shape", "seed"), [("m2m_100", 0, 0), ("t5", 1, 0), ("t5", 1, 2)])
def test_translations_end_where_those_of_the_reference_do(
    name: str, shape: int, seed: int, beams: int, tmp_path: Path
) -> None:
    theirs = published(tmp_path / "there", case := TRANSLATORS[name][shape], seed)
    start = 1 + ("forced_bos_token_id" in case.sizes)
    plain = [h[0].tokens for h in ph.load(tmp_path / "there").hypotheses(SOURCES, beam_size=beams)]
    other = next((row[-1] for row in plain if len({*row}) > 1), plain[0][0])
    said(tmp_path / "there/generation_config.json", eos_token_id=[EOS, other])
    theirs.generation_config.eos_token_id = [EOS, other]
    reader = AutoTokenizer.from_pretrained(tmp_path / "there")
    run = ph.load(tmp_path / "there")
    wanted = []
    for text in SOURCES:
        ids = reader(text, return_tensors="pt")["input_ids"]
        wanted.append(
            words(theirs.generate(ids, num_beams=beams, use_cache=False)[0, start:].tolist(), [EOS, other])
        )
    assert [h[0].tokens for h in run.hypotheses(SOURCES, beam_size=beams)] == wanted != plain
    engine = run.engine()
    streams = [engine.submit(text, beam_size=beams) for text in SOURCES]
    assert [stream.collect_texts() for stream in streams] == [
        [text] for text in run.translate(SOURCES, beam_size=beams)
    ]
    # what is drawn ends so too: of one token there is no choice
    drawn = run.hypotheses(SOURCES, temperature=1.0, top_k=1)
    assert [h[0].tokens for h in drawn] == [h[0].tokens for h in run.hypotheses(SOURCES, beam_size=1)]
    assert main(["export", str(tmp_path / "there"), str(tmp_path / "back")]) == 0
    assert ends(tmp_path / "back") == [EOS, other]


def test_the_ends_come_from_either_file_and_go_back(writer: Path, tmp_path: Path, caplog: Any) -> None:
    among = ends(writer)
    run = ph.load(writer)
    assert run.tokenizer.eos_id == EOS
    assert list(run.generation.stop_tokens) == run.tokenizer.ids_to_tokens(among[1:])
    assert not caplog.messages
    assert main(["import", str(writer), str(tmp_path / "run")]) == 0
    assert ph.load(tmp_path / "run").generation == run.generation
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "back")]) == 0
    assert ends(tmp_path / "back") == among
    assert ph.load(tmp_path / "back").generation == run.generation
    (writer / "generation_config.json").unlink()
    assert ph.load(writer).generation.stop_tokens == ()
    said(writer / "config.json", eos_token_id=among)
    assert ph.load(writer).generation.stop_tokens == run.generation.stop_tokens
    # the first of a list that has not the end of the tokenizer
    said(writer / "config.json", eos_token_id=among[1:3])
    other = ph.load(writer)
    assert (other.tokenizer.eos_id, other.generation.stop_tokens) == (
        among[1],
        run.generation.stop_tokens[1:2],
    )


def test_ends_of_conversations_and_of_texts_are_written_once(writer: Path, tmp_path: Path) -> None:
    run = ph.load(writer)
    run.generation = run.generation.model_copy(update={"chat": Choice("zephyr")})
    run.save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "back")]) == 0
    assert ends(tmp_path / "back") == ends(writer)
