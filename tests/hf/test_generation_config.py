"""generation_config.json both ways: outputs are drawn there as here, and what cannot be said is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hf.conftest import TEXTS, VOCABULARY
from tests.hf.save_helpers import config
from transformers import AutoModelForCausalLM, AutoTokenizer

import polyhead as ph
from polyhead import Choice, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.export.gguf import write_gguf
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer


def decoding(directory: Path, **values: Any) -> None:
    path = directory / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def speaker(parts: dict[str, Any] | None = None, **settings: Any) -> Run:
    tokenizer = train_tokenizer(TEXTS * 5, Choice("bpe"), VOCABULARY)
    return Run(build(config(**(parts or {})), seed=1), tokenizer, GenerationConfig(**settings))


def exported(run: Run, place: Path) -> Path:
    run.save(place / "run")
    assert main(["export", str(place / "run"), str(place / "out"), "--to", "hf"]) == 0
    return place / "out"


def test_how_decoding_draws_is_taken_over(gpt2: Path) -> None:
    decoding(gpt2, do_sample=True, temperature=0.7, top_p=0.9)
    found = ph.load(gpt2).generation
    # 50 is theirs where nothing is said
    assert (found.temperature, found.top_p, found.top_k) == (0.7, 0.9, 50)
    decoding(gpt2, do_sample=False)
    assert (ph.load(gpt2).generation.temperature, ph.load(gpt2).generation.top_p) == (0, 1)


def test_how_decoding_cannot_draw_is_told(gpt2: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each of these changes what theirs says; what is neutral is not worth a word."""
    decoding(gpt2, num_beams=1, min_length=0, typical_p=1.0, suppress_tokens=[])
    ph.load(gpt2)
    assert not caplog.messages
    decoding(gpt2, num_beams=4, suppress_tokens=[5], min_new_tokens=3)
    ph.load(gpt2)
    where = gpt2 / "generation_config.json"
    assert caplog.messages == [
        f"{where}: {said}, and generation is autoregressive without it"
        for said in ("suppress_tokens is [5]", "num_beams is 4", "min_new_tokens is 3")
    ]


@pytest.mark.parametrize("penalty", [1.0, 1.8])
def test_biases_and_penalties_say_there_what_they_say_here(penalty: float, tmp_path: Path) -> None:
    """Two tokens are favoured that none of them would say, and one is forbidden; the penalty is of logits
    with their biases.
    """
    plain = speaker(temperature=0)
    [text] = plain.generate(["the king"], max_new_tokens=20)
    never = plain.tokenizer.encode([text])[0][0]
    run = speaker(
        temperature=0,
        repetition_penalty=penalty,
        logit_bias={never: -100, 70: 3.2, 90: 3.1},
        max_new_tokens=20,
    )
    theirs = AutoModelForCausalLM.from_pretrained(exported(run, tmp_path)).eval()
    ids = run.tokenizer.encode(["the king"])[0]
    said = theirs.generate(torch.tensor([ids]), pad_token_id=0)[0, len(ids) :].tolist()
    assert never not in said and {70, 90} & {*said}
    found = run.generate(["the king"])[0]
    assert found == run.tokenizer.decode([said])[0] != text
    again = ph.load(tmp_path / "out")
    assert again.generation.logit_bias == run.generation.logit_bias
    assert again.generate(["the king"])[0] == found


def test_biases_that_cannot_be_said_are_told(gpt2: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of tokens that follow others, and beyond what a bias may be."""
    decoding(gpt2, sequence_bias=[[[5], -3.5], [[5, 6], 2.0], [[7], -1000.0]])
    assert ph.load(gpt2).generation.logit_bias == {5: -3.5}
    assert caplog.messages == [
        f"{gpt2 / 'generation_config.json'}: sequence_bias is [[[5, 6], 2.0], [[7], -1000.0]], and "
        "generation is autoregressive without it"
    ]


def test_a_longest_text_is_told_where_nothing_else_bounds_it(
    gpt2: Path, caplog: pytest.LogCaptureFixture
) -> None:
    decoding(gpt2, max_length=10, max_new_tokens=5)
    assert ph.load(gpt2).generation.max_new_tokens == 5
    assert not caplog.messages
    decoding(gpt2, max_new_tokens=None)
    ph.load(gpt2)
    assert caplog.messages == [
        f"{gpt2 / 'generation_config.json'}: max_length is 10, and generation is autoregressive without it"
    ]


def test_a_tokenizer_that_is_exported_fills_and_cuts_as_the_model_wants(tmp_path: Path) -> None:
    run = speaker()
    tokens = run.tokenizer
    roles = {role: token for role, token in tokens._roles.items() if role != "pad_token"}
    run.tokenizer = Tokenizer(tokens._inner, roles)
    theirs = AutoTokenizer.from_pretrained(exported(run, tmp_path))
    assert theirs.model_max_length == run.config.max_len
    texts = ["the king", "the king " * 200]
    found = theirs(texts, padding=True, truncation=True, return_tensors="pt")
    assert found["input_ids"].shape == (2, run.config.max_len)
    assert int(found["input_ids"][0, -1]) == run.tokenizer.eos_id
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model(**found).logits.isfinite().all()
    assert model.get_input_embeddings().padding_idx is None  # which would take the end's gradient
    assert "pad_token" not in ph.load(tmp_path / "out").tokenizer.role_ids


@pytest.mark.parametrize("wrong", [3, "a", [3], [[5, 1.0]], [[[5], "a"]], [[[5]]], {"5": 1}, [[["a"], 1.0]]])
def test_biases_that_are_none_are_refused(wrong: Any, gpt2: Path) -> None:
    decoding(gpt2, sequence_bias=wrong)
    with pytest.raises(
        UserError, match=r"generation_config.json: (sequence_bias is .*, expected lists|.*not a token id)"
    ):
        ph.load(gpt2)


def test_settings_that_others_have_no_words_for_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = {
        "frequency_penalty": 0.5,
        "grammar": Choice("choice", choices=["yes", "no"]),
        "logit_bias": {5: 2.0},
    }
    exported(speaker(**said), tmp_path)
    without = "does not support generation.frequency_penalty, generation.grammar"
    assert caplog.messages == [f"generation_config.json {without}; there sampling ignores it"]
    caplog.clear()
    llama = {
        "position": "rope",
        "norm": "rmsnorm",
        "feed_forward": "swiglu",
        "attention": {"name": "softmax", "bias": False},
    }
    write_gguf(speaker(llama, **said), tmp_path)
    assert caplog.messages == [f"model.gguf {without}, generation.logit_bias; there sampling ignores it"]
