"""Frequency and presence penalties and a bias of logits, against OpenAI's formula written out token by token."""

import math

import numpy as np
import pytest
import torch

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.generation.decoding import sampling as steps
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.decoding.sampling import (
    Sampling,
    apply_frequency_presence_penalties,
    apply_logit_bias,
)
from polyhead.generation.engine.engine import Engine
from polyhead.generation.generate import generate
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

INF = float("inf")
V, NEVER = 13, -1
PROMPTS = [[5, 6, 7, 5], [9], [4, 4, 8, 10, 3, 4, 4]]
RULES = {
    "frequency": {"frequency_penalty": 1.3},
    "presence": {"presence_penalty": 2.0},
    "said again": {"frequency_penalty": -0.7, "presence_penalty": -1.0},
    "a bias": {"logit_bias": ((3, 2.5), (4, -100.0))},
    "all": {"frequency_penalty": 0.4, "presence_penalty": 0.6, "logit_bias": ((0, 1.0), (12, -1.5))},
}


def make(kind="decoder", vocab_size=V, **sizes):
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 64} | sizes
    model = build(ModelConfig(kind=kind, vocab_size=vocab_size, tie_embeddings="none", **sizes), seed=1)
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model.eval()


@pytest.fixture(scope="module")
def model():
    return make()


def changed(row, said, frequency_penalty=0.0, presence_penalty=0.0, logit_bias=()):
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, and the bias of j."""
    new = []
    for token, logit in enumerate(row):
        count = sum(other == token for other in said)
        logit = logit - count * frequency_penalty - float(count > 0) * presence_penalty
        new.append(logit + sum(bias for other, bias in logit_bias if other == token))
    return new


def plainly(model, prompt, rule, limit, temperature=0.0, numbers=None):
    """A text, all of it read anew for every token, and each drawn by adding probabilities up in a loop."""
    said = []
    for _ in range(limit):
        with torch.no_grad():
            row = model(torch.tensor([[*prompt, *said]]))[0, -1].double().tolist()
        row = changed(row, said, **rule)
        if not temperature:
            said.append(max(range(len(row)), key=row.__getitem__))
            continue
        weights = [math.exp((logit - max(row)) / temperature) for logit in row]
        wanted, total, token = numbers.random() * math.fsum(weights), weights[0], 0
        while total <= wanted:
            token += 1
            total += weights[token]
        said.append(token)
    return said


def stream(seed, number):
    return np.random.Generator(np.random.PCG64([seed, number]))


@pytest.mark.parametrize("rule", RULES)
def test_logits_are_changed_by_the_formula(rule):
    torch.manual_seed(0)
    logits, said = 3 * torch.randn(4, V), [[], [3], [3, 3, 4, 3, 12], list(range(V)) * 2]
    logits[2, 3] = logits[3, 0] = -INF
    before = logits.clone()
    found = Sampling(temperature=0.0, **RULES[rule]).apply(logits, [[7, 7, 3]] * 4, 0, said)
    wanted = [changed(row, tokens, **RULES[rule]) for row, tokens in zip(logits.tolist(), said, strict=True)]
    torch.testing.assert_close(found, torch.tensor(wanted), rtol=1e-6, atol=1e-6)
    assert found[2, 3] == found[3, 0] == -INF  # what cannot come still cannot
    assert torch.equal(logits, before)  # what is given stays as it is
    drawn = Sampling(temperature=0.0, **RULES[rule]).sample(logits, [], [], 0, said)
    assert drawn == [max(range(V), key=row.__getitem__) for row in wanted]


def test_half_precision_is_left_before_anything_is_added():
    logits = torch.tensor([[10.0, 9.9375]], dtype=torch.bfloat16)
    (row,) = Sampling(temperature=0.0, frequency_penalty=0.01).apply(logits, [], 0, [[0] * 7]).tolist()
    assert row == pytest.approx([9.93, 9.9375])


@pytest.mark.parametrize("rule", RULES)
def test_the_greedy_text_is_that_of_the_formula(model, rule):
    wanted = [plainly(model, prompt, RULES[rule], 25) for prompt in PROMPTS]
    plain = [plainly(model, prompt, {}, 25) for prompt in PROMPTS]
    assert any(one != other for one, other in zip(wanted, plain, strict=True)) or rule == "said again"
    sampling, found = Sampling(temperature=0.0, **RULES[rule]), [[] for _ in PROMPTS]
    for token in generate(model, PROMPTS, sampling=sampling, eos_id=NEVER, max_new_tokens=25):
        found[token.row].append(token.id)
    assert found == wanted


def test_rows_with_settings_of_their_own_go_on_together(model):
    """Greedy and drawn, several of a prompt, through one engine whose room is short: some must be read anew."""
    engine = Engine(model, max_len=64, cache=Choice("paged", block_size=4, max_blocks=40), prefill_chunk=3)
    asked = []
    for number, rule in enumerate([*RULES.values(), {}] * 2):
        temperature, prompt = (0.0, 0.8)[number % 2], PROMPTS[number % 3]
        drawing, n = SamplingStrategy(Sampling(temperature=temperature, **rule), NEVER), 1 + number % 3
        request = engine.submit(prompt, SampledSequences(drawing, prompt, 16, n, seed=number))
        asked.append((request, prompt, rule, temperature, n, number))
    for request, prompt, rule, temperature, n, seed in asked:
        found = [hypothesis.tokens for hypothesis in request.result()]
        chances = [stream(seed, row) for row in range(n)]
        assert found == [plainly(model, prompt, rule, 16, temperature, chance) for chance in chances]
    assert engine.preemptions > 0


def test_a_text_that_outgrows_the_model_counts_what_it_no_longer_sees(model):
    """Of a long text the model sees the end alone, and every token of it was said."""
    rule = {"frequency_penalty": 2.0}
    sampling = Sampling(temperature=0.0, **rule)
    tokens = [
        token.id
        for token in generate(make(max_len=16), [[5]], sampling=sampling, eos_id=NEVER, max_new_tokens=60, max_len=16)
    ]  # fmt: skip
    counts = [tokens.count(token) for token in range(V)]
    assert max(counts) - min(counts) <= 12 and min(counts) > 0


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
        assert run.generate([text], temperature=0.0, speculate="lookup", **rule) == [wanted]
        assert said(run, text, temperature=0.0, **rule) == [wanted]
        for way in ({"seed": 3, "n": 3}, {"seed": 5, "top_p": 0.9, "n": 2}):
            assert [said(run, text, **way, **rule)] == run.generate([text], **way, **rule)


def test_a_form_holds_whatever_is_favoured():
    pytest.importorskip("llguidance")
    tokens = train_tokenizer(LINES * 5, Choice("bpe"), 300)
    run = Run(make("decoder", tokens.vocab_size, max_len=48), tokens, GenerationConfig(max_new_tokens=15))
    form, foreign = {"name": "choice", "choices": ["dogs", "犬"]}, tokens.encode(["z"])[0][0]
    begins = {text: [i for i, said in tokens.token_bytes.items() if said and text.encode().startswith(bytes(said))] for text in form["choices"]}  # fmt: skip
    for way in (
        {"temperature": 0.0},
        {"temperature": 2.0, "n": 5},
        {"temperature": 0.0, "speculate": "lookup"},
    ):
        for other, text in zip(form["choices"], reversed(form["choices"]), strict=True):
            bias = {foreign: 100.0} | dict.fromkeys(begins[other], -100.0)
            found = run.generate(["a dog"], form=form, logit_bias=bias, **{"n": 1} | way)
            assert {one for own in found for one in own} == {text}
        assert "z" in "".join(run.generate(["a dog"], logit_bias={foreign: 100.0}, **{"n": 1} | way)[0])


MISTAKES = [
    ({"frequency_penalty": 2.1}, "frequency_penalty: 2.1 is out of range"),
    ({"presence_penalty": -3}, "presence_penalty: -3 is out of range"),
    ({"presence_penalty": math.nan}, "presence_penalty: nan"),
    ({"logit_bias": [5]}, r"logit_bias: \[5\] is not an object such as {7: -100}"),
    ({"logit_bias": {"dog": 1}}, "logit_bias: 'dog' is not a token id"),
    ({"logit_bias": {-1: 1}}, "logit_bias: -1 is not a token id"),
    ({"logit_bias": {True: 1}}, "logit_bias: true is not a token id"),
    ({"logit_bias": {5: 101}}, "logit_bias: token 5 has the bias 101, wanted a number from -100 to 100"),
    ({"logit_bias": {5: "1"}}, "logit_bias: token 5 has the bias '1'"),
    ({"logit_bias": {5: True}}, "logit_bias: token 5 has the bias true"),
    ({"logit_bias": {5: math.nan}}, "logit_bias: token 5 has the bias nan"),
    ({"logit_bias": {5: 1, "5": 2}}, "logit_bias: token 5 stands there twice"),
    ({"logit_bias": {10**6: 1}}, "logit_bias names token 1000000; this model knows 0 to"),
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
    with pytest.raises(UserError, match=f"{name} is {value}, wanted a number from -2 to 2; 0 is none"):
        Sampling(**{name: value})


def test_beams_know_none_of_them(run):
    if run.kind == "decoder":
        for given in ({"frequency_penalty": 1}, {"presence_penalty": 1}, {"logit_bias": {5: 1}}):
            with pytest.raises(UserError, match="has no effect on the likeliest texts"):
                run.generate(["a"], beam_size=2, **given)


def test_a_recipe_keeps_them(tmp_path):
    config = GenerationConfig(frequency_penalty=0.5, presence_penalty=-1, logit_bias={"7": -100, 3: 2})
    assert config.logit_bias == {7: -100.0, 3: 2.0}
    for mode in ("python", "json"):
        assert GenerationConfig.model_validate(config.model_dump(mode=mode)) == config
