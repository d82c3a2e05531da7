"""Forms in every way of decoding, against all texts of a form written out and judged by whole texts read
anew.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

LINES = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark 犬 .", "dogs 0123456789"]
PROMPT = "a dog"
AMONG = ["dogs bark", "a dog", "犬", "two"]
CHOICE = {"name": "choice", "choices": AMONG}
DESIGNS: dict[str, dict[str, Any]] = {
    "attention": {},
    "hybrid": {"n_layers": 3, "layer_pattern": [{"attention": "linear"}, {}, {"block": "gru"}]},
}


@cache
def speaker(design: str = "attention", kind: str = "bpe", seed: int = 1) -> Run:
    tokens = train_tokenizer(LINES * 5, Choice(kind), 300)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 48} | DESIGNS[design]
    model = build(
        ModelConfig(kind="decoder", vocab_size=tokens.vocab_size, tie_embeddings="none", **sizes), seed=seed
    )
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return Run(model.eval(), tokens, GenerationConfig(max_new_tokens=15))


def ways(run: Run, text: str) -> list[list[int]]:
    """Every row of tokens that spells a text of those that may be said: its first token leaves no other text,
    and what no
    choice is left about is written as the tokenizer writes it, or half a character by its longest tokens."""
    said, special = run.tokenizer.token_bytes, set(run.tokenizer.special_ids)
    assert said is not None
    own = {bytes(data): i for i, data in said.items() if i not in special and data}
    found, whole = [], text.encode()
    for head in (whole[:n] for n in range(1, len(whole) + 1)):
        rest, tail = whole[len(head) :], list[int]()
        if head not in own:
            continue
        try:
            tail = run.tokenizer.encode([rest.decode()])[0]
        except UnicodeDecodeError:
            while rest:
                piece = max((one for one in own if rest.startswith(one)), key=len)
                tail, rest = [*tail, own[piece]], rest[len(piece) :]
        found.append([own[head], *tail])
    return found


def probabilities(
    run: Run, texts: list[str], temperature: float = 1.0
) -> dict[tuple[int, ...], tuple[float, float]]:
    """Of every row of tokens that spells one of the texts, its end included: log p of the model, and the
    probability to be
    drawn where at each place the tokens that lead to none of them are left out."""
    end = run.tokenizer.eos_id
    rows = [(*row, end) for text in texts for row in ways(run, text)]
    begun = run._encode_prompts([PROMPT])[0]
    found = {}
    for row in rows:
        with torch.no_grad():
            logits = run.model(torch.tensor([[*begun, *row[:-1]]]))[0, len(begun) - 1 :].double()
        whole, drawn = 0.0, 1.0
        for at, token in enumerate(row):
            could = sorted({other[at] for other in rows if other[:at] == row[:at]})
            whole += float(logits[at].log_softmax(-1)[token])
            shares = (logits[at][could] / temperature).softmax(-1)
            drawn *= float(shares[could.index(token)])
        found[row] = whole, drawn
    return found


def told(run: Run, **options: Any) -> list[tuple[int, ...]]:
    """Rows of tokens, their ends included, as the engine draws them."""
    stream = run.engine().submit(PROMPT, grammar=CHOICE, **options)
    stream.collect_texts()
    assert set(stream.finish_reasons) == {"stop"}
    return [tuple(row) for row in stream.tokens]


@pytest.mark.parametrize("design", DESIGNS)
def test_texts_are_drawn_as_often_as_the_model_says_them_where_others_cannot_come(design: str) -> None:
    run, n = speaker(design), 3000
    wanted = probabilities(run, AMONG, temperature=1.4)
    assert sum(share for _, share in wanted.values()) == pytest.approx(1)
    counts: Counter[str] = Counter()
    for seed in range(n // 250):
        counts.update(run.generate([PROMPT], n=250, seed=seed, grammar=CHOICE, temperature=1.4)[0])
    assert set(counts) <= set(AMONG)
    for text in AMONG:
        share = sum(p for row, (_, p) in wanted.items() if run.tokenizer.decode([row[:-1]])[0] == text)
        assert counts[text] / n == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / n) + 1e-9)


@pytest.mark.parametrize("design", DESIGNS)
def test_wide_beams_find_the_likeliest_of_all_texts(design: str) -> None:
    run = speaker(design)
    wanted = sorted(
        ((log_prob, row) for row, (log_prob, _) in probabilities(run, AMONG).items()), reverse=True
    )
    options = {"beam_size": 40, "n_best": 5, "length_penalty": 0.0, "early_stopping": "never"}
    (found,) = run.hypotheses([PROMPT], grammar=CHOICE, **options)
    for hypothesis, (log_prob, row) in zip(found, wanted, strict=False):
        assert [*hypothesis.tokens, run.tokenizer.eos_id] == list(row)
        assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-4)
    best = run.generate([PROMPT], n=2, grammar=CHOICE, beam_size=40, length_penalty=0.0)[0]
    assert best == run.tokenizer.decode([row[:-1] for _, row in wanted[:2]])


def test_there_are_no_more_texts_than_the_form_allows() -> None:
    run, form = speaker(), {"name": "regex", "pattern": "do"}
    (found,) = run.generate([PROMPT], n=40, grammar=form, beam_size=40)
    assert 0 < len(found) < 40
    assert set(found) == {"do"}


def test_greedy_takes_the_likeliest_token_that_may_come() -> None:
    run = speaker()
    rows = [[*row, run.tokenizer.eos_id] for text in AMONG for row in ways(run, text)]
    begun, said = run._encode_prompts([PROMPT])[0], list[int]()
    while not said or said[-1] != run.tokenizer.eos_id:
        could = {row[len(said)] for row in rows if row[: len(said)] == said}
        with torch.no_grad():
            logits = run.model(torch.tensor([[*begun, *said]]))[0, -1]
        said.append(max(could, key=lambda token: float(logits[token])))
    assert told(run, temperature=0.0) == [tuple(said)]
    assert run.generate([PROMPT], temperature=0, grammar=CHOICE) == run.tokenizer.decode([said[:-1]])


NUMBER = {"name": "regex", "pattern": "[0-9]{3} dogs?( bark)*"}


@pytest.mark.parametrize("speculate", ["lookup", {"name": "draft", "tokens": 3}])
@pytest.mark.parametrize("form", [CHOICE, NUMBER, {"name": "json"}], ids=["choice", "regex", "json"])
def test_guesses_change_nothing(form: Any, speculate: Any, tmp_path: Any) -> None:
    run = speaker()
    if isinstance(speculate, dict):
        speaker(seed=3).save(tmp_path / "draft")
        speculate = speculate | {"run": str(tmp_path / "draft")}
    prompts = [PROMPT, "two dogs bark", "0123"]
    wanted = run.generate(prompts, n=2, grammar=form, temperature=0)
    assert run.generate(prompts, n=2, grammar=form, temperature=0, speculative=speculate) == wanted
    if speculate == "lookup":
        assert run.generate(prompts, n=2, grammar=form, seed=5, speculative=speculate) == run.generate(
            prompts, n=2, grammar=form, seed=5
        )
    for said in itertools.chain(*run.generate(prompts, n=3, grammar=form, seed=7, speculative=speculate)):
        if form is CHOICE:
            assert said in AMONG
        elif form is NUMBER:
            assert re.fullmatch(
                r"[0-9]{3} dogs?( bark)*( b?a?r?)?", said
            )  # the longest ones have no room to end


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "char"])
def test_requests_of_different_forms_run_together_as_each_does_alone(kind: str) -> None:
    run = speaker(kind=kind)
    forms = [
        CHOICE,
        {"name": "regex", "pattern": "[0-9]{3}"},
        None,
        {"name": "json"},
        {"name": "choice", "choices": ["dogs", "two dogs"]},
    ]
    wishes: list[dict[str, Any]] = [
        way | ({"grammar": form} if form else {})
        for form in forms
        for way in ({"seed": 3, "n": 2}, {"temperature": 0.0}, {"beam_size": 3, "n": 2})
    ]
    if kind == "char":  # its vocabulary has no braces
        wishes = [wish for wish in wishes if wish.get("grammar") != {"name": "json"}]
    alone = [run.engine().submit(PROMPT, **wish).collect_texts() for wish in wishes]
    engine = run.engine()
    streams = [engine.submit(PROMPT, **wish) for wish in wishes]
    assert [stream.collect_texts() for stream in streams] == alone
    for wish, texts in zip(wishes, alone, strict=True):
        if (form := wish.get("grammar")) and form["name"] == "choice":
            assert set(texts) <= set(form["choices"])
        if form and form["name"] == "regex":
            assert all(re.fullmatch(form["pattern"], text) for text in texts)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("beams", [{}, {"beam_size": 2}, {"top_p": 0.9, "min_p": 0.1}])
def test_who_cannot_go_on_ends_by_an_error_and_the_others_go_on(beams: dict[str, float]) -> None:
    run = speaker(kind="char")
    good = {"name": "regex", "pattern": "dog+"}
    wanted = run.engine().submit(PROMPT, grammar=good, **beams).collect_texts()
    engine = run.engine()
    streams = [
        engine.submit(PROMPT, grammar={"name": "regex", "pattern": "doЖ"}, **beams),
        engine.submit(PROMPT, grammar=good, **beams),
        engine.submit(PROMPT, grammar={"name": "regex", "pattern": "(a{1000}){1000}{1000}"}, **beams),
    ]
    assert streams[1].collect_texts() == wanted
    for stream in (streams[0], streams[2]):
        with pytest.raises(UserError, match="the grammar allows no next token: it is too complex, the voc"):
            stream.collect_texts()
    with pytest.raises(UserError, match="the grammar allows no next token"):
        run.generate([PROMPT], grammar={"name": "regex", "pattern": "doЖ"}, speculative="lookup")


WAYS: list[dict[str, Any]] = [
    {"temperature": 0}, {"seed": 1}, {"seed": 2, "top_k": 3}, {"beam_size": 2},
    {"temperature": 0, "speculative": "lookup"}, {"seed": 1, "speculative": "lookup"},
]  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_nothing_else_is_said_where_other_wishes_forbid_what_the_form_wants(way: dict[str, Any]) -> None:
    """Nor as the last token, behind which nobody looks again."""
    run = speaker()
    assert run.tokenizer.ids_to_tokens(run._encode_prompts([PROMPT])[0]) == ["a", "Ġdog"]
    form = {"name": "regex", "pattern": "a( dog)+"}
    for most in (1, 2, 5):
        with pytest.raises(UserError, match="or no_repeat_ngram_size or a minimum length forbids it"):
            run.generate([PROMPT], grammar=form, no_repeat_ngram_size=1, max_new_tokens=most, **way)


def test_an_output_that_is_too_long_ends_in_the_middle() -> None:
    run = speaker()
    stream = run.engine().submit(
        PROMPT, grammar={"name": "regex", "pattern": "[0-9]{30}"}, max_new_tokens=7, n=3
    )
    assert all(re.fullmatch("[0-9]{7,30}", text) for text in stream.collect_texts())
    assert stream.finish_reasons == ["length"] * 3


def test_a_run_may_have_a_form_of_its_own(tmp_path: Any) -> None:
    run = speaker()
    own = Run(
        run.model,
        run.tokenizer,
        run.generation.model_copy(update={"grammar": Choice("choice", choices=["two"])}),
    )
    own.save(tmp_path)
    import polyhead as ph

    opened = ph.load(tmp_path)
    assert opened.generate([PROMPT], n=3) == [["two"] * 3]
    assert opened.generate([PROMPT], grammar={"name": "choice", "choices": ["a"]}) == ["a"]


def test_a_form_has_no_effect_on_translations() -> None:
    tokens = speaker().tokenizer
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 48}
    run = Run(
        build(ModelConfig(vocab_size=tokens.vocab_size, **sizes), seed=1).eval(), tokens, GenerationConfig()
    )
    for ask in (run.translate, lambda texts, grammar: run.engine().submit(texts[0], grammar=grammar)):
        with pytest.raises(UserError, match="grammar has no effect on translations"):
            ask(["ein hund"], grammar="json")
