"""Run directories: written, read back, and refused for each thing that can be wrong with one."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.run.run_helpers import copy as copy
from tests.run.run_helpers import run
from tests.run.run_helpers import saved as saved

import polyhead as ph
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark ."]
GENERATION = GenerationConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=3)


@pytest.mark.parametrize("position", ["learned", "t5", "shaw", "disentangled"])
def test_opening_a_run_does_without_the_compiler_of_torch(position: str, tmp_path: Path) -> None:
    """It takes a second to be imported, and drawing a tensor that has no memory imports it."""
    run(position=position, tie_embeddings="none").save(saved := tmp_path / "run")
    script = (
        "import sys, polyhead as ph; ph.load(sys.argv[1], fast=True); print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, saved], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("how", [{"fast": True}, {"dtype": "int8"}, {"dtype": "bf16", "fast": True}], ids=str)
def test_what_was_opened_for_inference_alone_is_not_saved_in_pieces(copy: Path, how: dict[str, Any]) -> None:
    before = (copy / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="cannot be saved"):
        ph.load(copy, **how).save(copy)
    assert (copy / "model.safetensors").read_bytes() == before
    ph.load(copy, dtype="bf16").save(copy)


def test_what_is_saved_is_loaded(saved: Path) -> None:
    ours, theirs = run(), ph.load(saved)
    assert theirs.config == ours.config
    assert theirs.generation == GENERATION
    assert theirs.tokenizer.sha256 == ours.tokenizer.sha256
    assert theirs.recipe is None
    assert theirs.translate(TEXTS) == ours.translate(TEXTS)
    assert {path.name for path in saved.iterdir()} == {
        "README.md", "config.json", "generation_config.json", "manifest.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    described = json.loads((saved / "config.json").read_text())
    tokens = ours.tokenizer
    assert {name: described[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id",
        "decoder_start_token_id")} == {
        "pad_token_id": tokens.pad_id, "bos_token_id": tokens.bos_id,
        "eos_token_id": tokens.eos_id, "decoder_start_token_id": tokens.bos_id,
    }  # fmt: skip


def test_a_run_says_what_it_is(saved: Path) -> None:
    run = ph.load(saved)
    assert (
        repr(run) == f"Run(encoder-decoder, {run.config.n_layers} layers of {run.config.d_model}, "
        f"{run.tokenizer.vocab_size} tokens)"
    )


def test_scores_are_the_sums_of_the_logits_one_pair_at_a_time(saved: Path) -> None:
    loaded = ph.load(saved)
    sources = ["ein hund", "zwei hunde bellen . ein hund", "hund", "", "zwei"]
    targets = ["a dog barks", "dogs", "", "two dogs bark . a dog", "two"]
    t = loaded.tokenizer
    wanted = []
    with torch.inference_mode():
        for source, target in zip(sources, targets, strict=True):
            x, y = (t.encode([text])[0] for text in (source, target))
            log_p = loaded.model(torch.tensor([[*x, t.eos_id]]), torch.tensor([[t.bos_id, *y]])).log_softmax(
                -1
            )[0]
            wanted.append((sum(float(log_p[i, token]) for i, token in enumerate([*y, t.eos_id])), len(y) + 1))
    for budget in (2048, 20, 1):  # all in one batch, some, one by one
        scores = loaded.score(sources, targets, batch_tokens=budget)
        assert [s.tokens for s in scores] == [n for _, n in wanted]
        assert [s.log_prob for s in scores] == pytest.approx([p for p, _ in wanted], rel=1e-5)
    for budget in (0, -5):
        with pytest.raises(UserError, match=f"batch_tokens is {budget}; expected an integer, 1 or more"):
            loaded.score(sources, targets, batch_tokens=budget)
    mean = sum(p for p, _ in wanted) / sum(n for _, n in wanted)
    assert loaded.perplexity(sources, targets) == pytest.approx(math.exp(-mean), rel=1e-5)
    assert loaded.score([], []) == []


def test_options_that_translations_do_not_know_are_refused(saved: Path) -> None:
    with pytest.raises(
        UserError,
        match="max_new_tokens has no effect on translations; valid settings: bad_words, batch_tokens, "
        "beam_size",
    ):
        ph.load(saved).translate(["a"], max_new_tokens=5)


def test_pairs_that_cannot_be_scored_are_named(saved: Path) -> None:
    loaded = ph.load(saved)
    with pytest.raises(UserError, match="1 sources and 2 targets: expected equally many"):
        loaded.score(["a"], ["a", "b"])
    with pytest.raises(UserError, match=r"pair 2 has \d+ tokens; this model's max_len is 32"):
        loaded.score(["a", "b"], ["a", "zz " * 40])


def test_changes_of_one_call_do_not_stay(saved: Path) -> None:
    loaded = ph.load(saved)
    assert len(loaded.translate(["ein hund"], n_best=2)[0]) == 2
    assert loaded.generation == GENERATION
    with pytest.raises(UserError, match="beam_sise: unknown key; did you mean 'beam_size'"):
        loaded.translate(["ein hund"], beam_sise=3)


def test_attention_has_a_row_for_each_target_token_and_sums_to_one(saved: Path) -> None:
    loaded = ph.load(saved)
    source, target, weights = loaded.cross_attention("ein hund", "a dog")
    assert weights.shape == (1, 2, len(target), len(source))
    assert (source[-1], target[-1]) == ("■", "■")
    assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)


def test_evaluation_scores_what_is_translated(saved: Path) -> None:
    loaded = ph.load(saved)
    outputs = loaded.translate(TEXTS[:2])
    evaluation = loaded.evaluate(TEXTS[:2], outputs)
    assert evaluation.outputs == outputs
    assert [score.name for score in evaluation.scores] == ["bleu", "bleu-lc", "chrf"]
    with pytest.raises(
        UserError, match="evaluate measures the best translation of each source: remove n_best"
    ):
        loaded.evaluate(TEXTS[:2], outputs, n_best=2)
    with pytest.raises(UserError, match="max_length_ratio: 1e\\+308 is out of range"):
        loaded.translate(TEXTS[:2], max_length_ratio=1e308)


@pytest.mark.parametrize("n", [0, -1])
def test_no_output_at_all_is_no_wish(saved: Path, n: int) -> None:
    with pytest.raises(UserError, match=f"n_best: {n} is out of range"):
        ph.load(saved).translate(["ein hund"], n_best=n)
    writer = run(kind="decoder")
    with pytest.raises(UserError, match=f"n is {n}; expected 1 or more"):
        writer.generate(["ein hund"], n=n)
    with pytest.raises(UserError, match=f"n_best: {n} is out of range"):
        writer.generate(["ein hund"], n=n, beam_size=2)


def test_a_text_of_blanks_has_an_empty_translation() -> None:
    translator = run()
    assert translator.translate([" ", "", "\t\n", "ein"]) == ["", "", "", *translator.translate(["ein"])]


@pytest.mark.parametrize("text", ["\u200b", " \xad ", "\u202e\u2066", "\u3164", "\ufe0f", "\x07"])
def test_a_text_without_visible_characters_has_an_empty_translation(text: str) -> None:
    translator = run()
    assert translator.translate([text]) == [""]
    with pytest.raises(UserError, match="empty"):
        translator.engine().submit(text)


def test_an_output_that_must_be_longer_than_it_may_is_refused() -> None:
    writer = run(kind="decoder")
    with pytest.raises(UserError, match="min_new_tokens is 9, more than the maximum of 4 tokens"):
        writer.generate(["ein hund"], beam_size=2, max_new_tokens=4, min_new_tokens=9)
    with pytest.raises(UserError, match="min_new_tokens is 9, more than the maximum of 4 tokens"):
        writer.engine().submit("ein hund", beam_size=2, max_new_tokens=4, min_new_tokens=9)
    with pytest.raises(UserError, match="min_new_tokens is 9, more than the maximum of 4 tokens"):
        run().engine().submit("ein", min_new_tokens=9, max_length_ratio=0, max_length_extra=4)
    with pytest.raises(UserError, match="max_new_tokens has no effect on sampled translations"):
        run().engine().submit("ein", temperature=1.0, max_new_tokens=4)
    with pytest.raises(UserError, match="bad_words has no effect on beam search"):
        writer.generate(["ein hund"], beam_size=2, bad_words=["<unk>"])
