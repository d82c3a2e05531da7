"""Frequency and presence penalties and a bias of logits, against OpenAI's formula written out token by
token.
"""

import math

import pytest
import torch
from tests.generation.penalties_helpers import RULES, make, plainly
from tests.generation.penalties_helpers import model as model

from polyhead import Choice
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.generation.decoding import sampling as steps
from polyhead.generation.decoding.sampling import (
    Sampling,
    apply_frequency_presence_penalties,
    apply_logit_bias,
)
from polyhead.generation.generate import generate
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

INF = float("inf")
V, NEVER = 13, -1
PROMPTS = [[5, 6, 7, 5], [9], [4, 4, 8, 10, 3, 4, 4]]


@pytest.mark.parametrize("rule", RULES)
def test_the_greedy_text_is_that_of_the_formula(model, rule):
    wanted = [plainly(model, prompt, RULES[rule], 25) for prompt in PROMPTS]
    plain = [plainly(model, prompt, {}, 25) for prompt in PROMPTS]
    assert any(one != other for one, other in zip(wanted, plain, strict=True)) or rule == "said again"
    sampling, found = Sampling(temperature=0.0, **RULES[rule]), [[] for _ in PROMPTS]
    for token in generate(model, PROMPTS, sampling=sampling, eos_id=NEVER, max_new_tokens=25):
        found[token.row].append(token.id)
    assert found == wanted


def test_who_asks_for_nothing_pays_nothing(model, monkeypatch):
    def never(*given):
        raise AssertionError("a step that nobody asked for")

    monkeypatch.setattr(steps, "apply_frequency_presence_penalties", never)
    monkeypatch.setattr(steps, "apply_logit_bias", never)
    for sampling in (Sampling(), Sampling(temperature=0.0), Sampling(top_p=0.9, repetition_penalty=1.2)):
        assert len(list(generate(model, PROMPTS, sampling=sampling, eos_id=NEVER, max_new_tokens=3))) == 9
    with pytest.raises(AssertionError, match="nobody asked"):
        next(generate(model, PROMPTS, sampling=Sampling(presence_penalty=1), eos_id=NEVER, max_new_tokens=3))


def test_one_step_alone():
    logits = torch.zeros(2, 4)
    assert apply_frequency_presence_penalties(logits, [[1, 1, 3], []], 0.5, 1.0).tolist() == [
        [0, -2, 0, -1.5],
        [0, 0, 0, 0],
    ]
    assert apply_frequency_presence_penalties(logits, [[], []], 0.5, 1.0) is logits
    assert (
        apply_logit_bias(logits, torch.tensor([2, 0]), torch.tensor([1.0, -3.0])).tolist()
        == [[-3, 0, 1, 0]] * 2
    )
    with pytest.raises(AssertionError, match="of every row"):
        apply_frequency_presence_penalties(logits, [[1]], 0.5, 1.0)


# --- runs ---

LINES = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark 犬 .", "dogs"]


@pytest.fixture(scope="module", params=["decoder", "encoder-decoder"])
def run(request):
    tokens = train_tokenizer(LINES * 5, Choice("bpe"), 300)
    model = make(request.param, tokens.vocab_size, max_len=48)
    return Run(model, tokens, GenerationConfig(max_new_tokens=15, max_length_ratio=1.0, max_length_extra=5))


def said(run, text, **changes):
    return run.engine().submit(text, **changes).collect_texts()


def test_a_run_says_what_the_formula_says(run):
    """The prompt is not counted, nor is a source."""
    if run.kind != "decoder":
        loved = run.tokenizer.encode(["dogs"])[0][0]
        (text,) = said(run, "a dog", temperature=0.0, logit_bias={loved: 100.0})
        assert text.replace(run.tokenizer.decode([[loved]])[0], "") == ""
        assert said(run, "a dog", frequency_penalty=2.0, temperature=0.0) != said(
            run, "a dog", temperature=0.0
        )
        return
    rule = {"frequency_penalty": 1.1, "presence_penalty": 0.3, "logit_bias": {9: 3.0, "40": -100}}
    naive = rule | {"logit_bias": ((9, 3.0), (40, -100.0))}
    for text in LINES:
        tokens = plainly(run.model, run.tokenizer.encode([text])[0], naive, 15)
        if (end := run.tokenizer.eos_id) in tokens:
            tokens = tokens[: tokens.index(end)]
        wanted = run.tokenizer.decode([tokens])[0].rstrip("\ufffd")
        assert run.generate([text], temperature=0.0, **rule) == [wanted]
        assert run.generate([text], temperature=0.0, speculative="lookup", **rule) == [wanted]
        assert said(run, text, temperature=0.0, **rule) == [wanted]
        for way in ({"seed": 3, "n": 3}, {"seed": 5, "top_p": 0.9, "n": 2}):
            assert [said(run, text, **way, **rule)] == run.generate([text], **way, **rule)


def test_a_form_holds_whatever_is_favoured():
    pytest.importorskip("llguidance")
    tokens = train_tokenizer(LINES * 5, Choice("bpe"), 300)
    run = Run(make("decoder", tokens.vocab_size, max_len=48), tokens, GenerationConfig(max_new_tokens=15))
    form, foreign = {"name": "choice", "choices": ["dogs", "犬"]}, tokens.encode(["z"])[0][0]
    begins = {text: [i for i,
        said in tokens.token_bytes.items() if said and text.encode().startswith(bytes(said))]
            for text in form["choices"]}  # fmt: skip
    for way in (
        {"temperature": 0.0},
        {"temperature": 2.0, "n": 5},
        {"temperature": 0.0, "speculative": "lookup"},
    ):
        for other, text in zip(form["choices"], reversed(form["choices"]), strict=True):
            bias = {foreign: 100.0} | dict.fromkeys(begins[other], -100.0)
            found = run.generate(["a dog"], grammar=form, logit_bias=bias, **{"n": 1} | way)
            assert {one for own in found for one in own} == {text}
        assert "z" in "".join(run.generate(["a dog"], logit_bias={foreign: 100.0}, **{"n": 1} | way)[0])


MISTAKES = [
    ({"frequency_penalty": 2.1}, "frequency_penalty: 2.1 is out of range"),
    ({"presence_penalty": -3}, "presence_penalty: -3 is out of range"),
    ({"presence_penalty": math.nan}, "presence_penalty: nan"),
    ({"logit_bias": [5]}, r"logit_bias: \[5\] is not a mapping from token ids to numbers, e.g. {7: -100}"),
    ({"logit_bias": {"dog": 1}}, "logit_bias: 'dog' is not a token id"),
    ({"logit_bias": {-1: 1}}, "logit_bias: -1 is not a token id"),
    ({"logit_bias": {True: 1}}, "logit_bias: true is not a token id"),
    ({"logit_bias": {5: 101}}, "logit_bias: token 5 has the bias 101, expected a number from -100 to 100"),
    ({"logit_bias": {5: "1"}}, "logit_bias: token 5 has the bias '1'"),
    ({"logit_bias": {5: True}}, "logit_bias: token 5 has the bias true"),
    ({"logit_bias": {5: math.nan}}, "logit_bias: token 5 has the bias nan"),
    ({"logit_bias": {5: 1, "5": 2}}, "logit_bias: token 5 occurs twice"),
    ({"logit_bias": {10**6: 1}}, "logit_bias has token 1000000; the vocabulary has 0 to"),
]


@pytest.mark.parametrize(("given", "message"), MISTAKES, ids=str)
def test_what_cannot_be_is_one_line(run, given, message):
    asks = [lambda: said(run, "a dog", **given)]
    if run.kind == "decoder":
        asks.append(lambda: run.generate(["a dog"], **given))
    for ask in asks:
        with pytest.raises(UserError, match=message) as told:
            ask()
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
@pytest.mark.parametrize("value", [2.5, -2.5, math.nan, INF])
def test_impossible_sampling_is_refused(name, value):
    with pytest.raises(UserError, match=f"{name} is {value}, expected a number from -2 to 2; 0 disables it"):
        Sampling(**{name: value})


def test_beams_know_none_of_them(run):
    if run.kind == "decoder":
        for given in ({"frequency_penalty": 1}, {"presence_penalty": 1}, {"logit_bias": {5: 1}}):
            with pytest.raises(UserError, match="has no effect on beam search"):
                run.generate(["a"], beam_size=2, **given)
