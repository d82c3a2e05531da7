"""Runs that guess for runs: by name in Python, on the command line and in a file; what cannot guess is
refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import polyhead as ph
from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.run.run import Run
from polyhead.run.speculative import draft_model
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["a dog barks .", "two dogs bark .", "the cat sees a dog .", "two cats see the dogs ."]
PROMPTS = ["a dog", "two cats see two cats", "the"]


def tokenizer(texts: list[str] = TEXTS) -> Tokenizer:
    return train_tokenizer(texts * 5, Choice("bpe"), 290)


def made(seed: int, tokens: Tokenizer, **changes: Any) -> Run:
    sizes = {
        "kind": "decoder",
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 2,
        "d_ff": 40,
        "max_len": 48,
        "dropout": 0.0,
    } | changes
    model = build(ModelConfig(vocab_size=tokens.vocab_size, **sizes), seed=seed)
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return Run(model, tokens, GenerationConfig(max_new_tokens=30, temperature=0.8))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one tokenizer, large and small, a translator of the same, and a run of another one."""
    home = tmp_path_factory.mktemp("runs")
    made(1, tokenizer()).save(home / "large")
    made(2, tokenizer(), n_layers=1, d_model=16).save(home / "small")
    made(3, tokenizer(), kind="encoder-decoder").save(home / "translator")
    made(4, tokenizer([text.replace("dog", "wolf") for text in TEXTS])).save(home / "other")
    made(5, tokenizer(), attention="linear").save(home / "linear")
    return home


@pytest.mark.parametrize("name", ["small", "large"])
def test_a_run_that_guesses_changes_no_greedy_text(place: Path, name: str) -> None:
    run, cold = (
        ph.load(place / "large"),
        {"temperature": 0.0, "repetition_penalty": 1.5, "max_new_tokens": 80},
    )
    wanted = run.generate(PROMPTS, **cold)
    assert len(set(wanted)) == 3 and all(len(set(text)) > 5 for text in wanted)
    assert run.generate(PROMPTS, speculative={"name": "draft", "run": str(place / name)}, **cold) == wanted
    assert run.generate(PROMPTS, speculative="lookup", cache="paged", batch_tokens=60, **cold) == wanted


def test_look_up_changes_no_text_at_all(place: Path) -> None:
    run = ph.load(place / "large")
    for changes in ({"n": 3, "seed": 5}, {"seed": 2, "stop": [" "]}, {"top_p": 0.9, "max_new_tokens": 80}):
        assert run.generate(PROMPTS, speculative="lookup", **changes) == run.generate(PROMPTS, **changes)


def test_the_small_run_draws_what_depends_on_the_seed_and_the_row_alone(place: Path) -> None:
    run, choice = ph.load(place / "large"), {"name": "draft", "run": str(place / "small"), "tokens": 3}
    found = run.generate(PROMPTS, n=2, seed=3, speculative=choice)
    assert found == run.generate(PROMPTS, n=2, seed=3, speculative=choice, batch_tokens=1)
    assert found[0] == run.generate(PROMPTS[:1], n=2, seed=3, speculative=choice)[0]
    assert found != run.generate(PROMPTS, n=2, seed=4, speculative=choice)


def test_the_small_run_is_opened_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(
        draft_model, "load", lambda run, **rest: (opened.append(run), ph.load(run, **rest))[1]
    )
    run = ph.load(place / "large")
    for tokens in (2, 2, 3, 3):
        run.generate(
            ["a"],
            speculative={"name": "draft", "run": str(place / "small"), "tokens": tokens},
            max_new_tokens=2,
        )
    assert opened == [str(place / "small")] * 2


def test_who_guesses_stands_in_the_run(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(1, tokenizer())
    run.generation = GenerationConfig.model_validate(
        {"speculative": {"name": "lookup", "tokens": 5}, "max_new_tokens": 9}
    )
    run.save(tmp_path / "run")
    written = json.loads((tmp_path / "run/generation_config.json").read_text())
    assert written["speculative"] == {"name": "lookup", "ngram": 3, "min_ngram": 1, "tokens": 5}
    again = ph.load(tmp_path / "run")
    assert again.generation == run.generation
    asked: list[Choice] = []
    monkeypatch.setattr(Run, "_proposer", lambda self, choice: asked.append(choice))
    again.generate(["a"])
    assert asked == [Choice("lookup", ngram=3, min_ngram=1, tokens=5)]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("lokup", "speculative: unknown speculative 'lokup'; did you mean 'lookup'"),
        ("draft", "speculative 'draft' requires the option 'run'"),
        (
            {"name": "draft", "run": "other"},
            "other has another tokenizer .of 285 tokens; the large model's has 285.*, see init_from.run",
        ),
        ({"name": "draft", "run": "translator"}, "translator is not a language model"),
        ({"name": "draft", "run": "smal"}, "no run directory '.*smal'; did you mean '.*/small'"),
        (
            {"name": "draft", "run": "small", "tokens": 0},
            "speculative 'draft': tokens is 0, expected at least 1",
        ),
        (
            {"name": "draft", "run": "linear"},
            "speculative decoding removes rejected draft tokens, but the recurrent state of this",
        ),
    ],
)
def test_who_cannot_guess_is_refused(place: Path, choice: Any, message: str) -> None:
    if isinstance(choice, dict):
        choice = choice | {"run": str(place / choice["run"])}
    with pytest.raises(UserError, match=message):
        ph.load(place / "large").generate(["a"], speculative=choice)


def test_guesses_have_no_effect_where_nothing_is_drawn(place: Path) -> None:
    with pytest.raises(UserError, match="speculative has no effect on beam search"):
        ph.load(place / "large").generate(["a"], beam_size=2, speculative="lookup")
    with pytest.raises(UserError, match="speculative has no effect on translations"):
        ph.load(place / "translator").translate(["a"], speculative="lookup")


def test_on_the_command_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["generate", str(place / "large"), "a dog", "--temperature", "0"]
    said = []
    for more in ([], ["--speculative", "lookup,tokens=3"], ["--speculative", f"draft,run={place / 'small'}"]):
        assert main([*typed, *more]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] == said[2]
    assert main([*typed, "--speculative", "lokup"]) == 2
    assert "did you mean 'lookup'" in capsys.readouterr().err
    assert main([*typed, "--speculative", "lookup", "--cache", "window,window=8"]) == 2
    assert "cache 'window' cannot remove" in capsys.readouterr().err
