import itertools
import math
import re
from collections import Counter
from functools import cache

import pytest
import torch
from tests.generation.run_helpers import make_run

import polyhead as ph
from polyhead import Choice
from polyhead.core.errors import UserError
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

LINES = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark 犬 .", "dogs 0123456789"]
PROMPT = "a dog"
CHOICES = ["dogs bark", "a dog", "犬", "two"]
CHOICE = {"name": "choice", "choices": CHOICES}
NUMBER = {"name": "regex", "pattern": "[0-9]{3} dogs?( bark)*"}
DESIGNS = {"softmax": {}}
DESIGNS |= {"hybrid": {"n_layers": 3, "layer_pattern": [{"attention": "linear"}, {}, {"block": "gru"}]}}


def submit(run, **options):
    return run.engine().submit(PROMPT, **options)


@cache
def make(design="softmax", kind="bpe", seed=1):
    tokenizer = train_tokenizer(LINES * 5, Choice(kind), 300)
    return make_run("decoder", tokenizer, seed, {"max_new_tokens": 15}, **DESIGNS[design])


def spellings(run, text):
    """Every row of tokens that spells a text of the choices.

    Its first token leaves only this text; the rest, which is then forced, is written as the tokenizer writes
    it, or a partial character by its longest tokens.
    """
    special = set(run.tokenizer.special_ids)
    ids = {bytes(data): i for i, data in run.tokenizer.token_bytes.items() if i not in special and data}
    rows, data = [], text.encode()
    for head in (data[:n] for n in range(1, len(data) + 1)):
        rest, tail = data[len(head) :], []
        if head not in ids:
            continue
        try:
            tail = run.tokenizer.encode([rest.decode()])[0]
        except UnicodeDecodeError:
            while rest:
                piece = max((one for one in ids if rest.startswith(one)), key=len)
                tail, rest = [*tail, ids[piece]], rest[len(piece) :]
        rows.append((ids[head], *tail, run.tokenizer.eos_id))
    return rows


@torch.no_grad()
def probabilities(run, temperature=1.0):
    """Of every spelling of the choices: log p of the model, and the probability of being sampled.

    At each place, tokens that lead to none of the choices are left out.
    """
    rows = [row for text in CHOICES for row in spellings(run, text)]
    prompt, result = run._encode_prompts([PROMPT])[0], {}
    for row in rows:
        logits = run.model(torch.tensor([[*prompt, *row[:-1]]]))[0, len(prompt) - 1 :].double()
        log_p, p = 0.0, 1.0
        for i, token in enumerate(row):
            allowed = sorted({other[i] for other in rows if other[:i] == row[:i]})
            log_p += float(logits[i].log_softmax(-1)[token])
            p *= float((logits[i][allowed] / temperature).softmax(-1)[allowed.index(token)])
        result[row] = log_p, p
    return result


@pytest.mark.parametrize("design", DESIGNS)
def test_samples_under_a_grammar_follow_the_model(design):
    run, n, counts = make(design), 1000, Counter()
    expected = probabilities(run, temperature=1.4)
    assert sum(p for _, p in expected.values()) == pytest.approx(1)
    for seed in range(n // 250):
        counts.update(run.generate([PROMPT], n=250, seed=seed, grammar=CHOICE, temperature=1.4)[0])
    assert set(counts) <= set(CHOICES)
    for text in CHOICES:
        share = sum(p for row, (_, p) in expected.items() if run.tokenizer.decode([row[:-1]])[0] == text)
        assert counts[text] / n == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / n) + 1e-9)


@pytest.mark.parametrize("design", DESIGNS)
def test_wide_beams_find_the_best_texts(design):
    run = make(design)
    expected = sorted(((log_p, row) for row, (log_p, _) in probabilities(run).items()), reverse=True)
    options = {"grammar": CHOICE, "beam_size": 40, "length_penalty": 0.0}
    (hypotheses,) = run.hypotheses([PROMPT], n_best=5, early_stopping="never", **options)
    for hypothesis, (log_p, row) in zip(hypotheses, expected, strict=False):
        assert (*hypothesis.tokens, run.tokenizer.eos_id) == row
        assert hypothesis.log_prob == pytest.approx(log_p, abs=1e-4)
    texts = run.tokenizer.decode([row[:-1] for _, row in expected[:2]])
    assert run.generate([PROMPT], n=2, **options)[0] == texts


def test_limits_and_default_of_a_grammar(tmp_path):
    run = make()
    (texts,) = run.generate([PROMPT], n=40, grammar={"name": "regex", "pattern": "do"}, beam_size=40)
    assert 0 < len(texts) < 40 and set(texts) == {"do"}
    grammar = {"name": "regex", "pattern": "[0-9]{30}"}
    stream = run.engine().submit(PROMPT, grammar=grammar, max_new_tokens=7, n=3)
    assert all(re.fullmatch("[0-9]{7,30}", text) for text in stream.collect_texts())
    assert stream.finish_reasons == ["length"] * 3
    generation = run.generation.model_copy(update={"grammar": Choice("choice", choices=["two"])})
    Run(run.model, run.tokenizer, generation).save(tmp_path)
    loaded_run, translator = ph.load(tmp_path), make_run("encoder-decoder")
    assert loaded_run.generate([PROMPT], n=3) == [["two"] * 3]
    assert loaded_run.generate([PROMPT], grammar={"name": "choice", "choices": ["a"]}) == ["a"]
    requests = [lambda: translator.translate(["a"], grammar="json")]
    requests += [lambda: submit(translator, grammar="json")]
    for request in requests:
        with pytest.raises(UserError, match="grammar has no effect on translations"):
            request()


@torch.no_grad()
def test_greedy_takes_the_best_allowed_token():
    run, tokens = make(), ()
    rows = [row for text in CHOICES for row in spellings(run, text)]
    prompt = run._encode_prompts([PROMPT])[0]
    while run.tokenizer.eos_id not in tokens:
        allowed = {row[len(tokens)] for row in rows if row[: len(tokens)] == tokens}
        logits = run.model(torch.tensor([[*prompt, *tokens]]))[0, -1]
        tokens = (*tokens, max(allowed, key=lambda token: float(logits[token])))
    stream = run.engine().submit(PROMPT, grammar=CHOICE, temperature=0.0)
    texts = stream.collect_texts()
    assert stream.finish_reasons == ["stop"] and stream.tokens == [list(tokens)]
    assert run.tokenizer.decode([tokens[:-1]]) == texts
    assert run.generate([PROMPT], temperature=0, grammar=CHOICE) == texts


@pytest.mark.parametrize(
    ("grammar", "speculative"),
    [(CHOICE, "lookup"), (NUMBER, "draft"), (NUMBER, "lookup"), ({"name": "json"}, "draft")],
)
def test_drafts_change_no_text_under_a_grammar(grammar, speculative, tmp_path):
    run, prompts = make(), [PROMPT, "two dogs bark", "0123"]
    settings = [{"n": 2, "temperature": 0}]
    if speculative == "draft":
        make(seed=3).save(tmp_path / "draft")
        choice = {"name": "draft", "tokens": 3, "run": str(tmp_path / "draft")}
    else:
        choice = speculative
        settings.append({"n": 2, "seed": 5})
    for options in settings:
        expected = run.generate(prompts, grammar=grammar, **options)
        assert run.generate(prompts, grammar=grammar, speculative=choice, **options) == expected
    for text in itertools.chain(*run.generate(prompts, n=3, grammar=grammar, seed=7, speculative=choice)):
        if grammar is CHOICE:
            assert text in CHOICES
        if grammar is NUMBER:  # the longest ones are cut
            assert re.fullmatch(r"[0-9]{3} dogs?( bark)*( b?a?r?)?", text)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "char"])
def test_requests_with_different_grammars_share_an_engine(kind):
    run, grammars = make(kind=kind), [CHOICE, {"name": "regex", "pattern": "[0-9]{3}"}, None]
    if kind != "char":  # its vocabulary has no braces
        grammars.append({"name": "json"})
    settings = [{"seed": 3, "n": 2}, {"temperature": 0.0}, {"beam_size": 3, "n": 2}]
    requests = [o | ({"grammar": g} if g else {}) for g in grammars for o in settings]
    expected = [run.engine().submit(PROMPT, **options).collect_texts() for options in requests]
    engine = run.engine()
    streams = [engine.submit(PROMPT, **options) for options in requests]
    assert [stream.collect_texts() for stream in streams] == expected
    for options, texts in zip(requests, expected, strict=True):
        grammar = options.get("grammar") or {"name": ""}
        if grammar["name"] == "choice":
            assert set(texts) <= set(grammar["choices"])
        if grammar["name"] == "regex":
            assert all(re.fullmatch(grammar["pattern"], text) for text in texts)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("options", [{}, {"beam_size": 2}, {"top_p": 0.9, "min_p": 0.1}])
def test_dead_grammar_fails_only_its_request(options):
    run, message = make(kind="char"), "the grammar allows no next token: it is too complex, the voc"
    foreign, valid, huge = ({"name": "regex", "pattern": p} for p in ("doЖ", "dog+", "(a{1000}){1000}{1000}"))
    expected, engine = run.engine().submit(PROMPT, grammar=valid, **options).collect_texts(), run.engine()
    streams = [engine.submit(PROMPT, grammar=g, **options) for g in (foreign, valid, huge)]
    assert streams[1].collect_texts() == expected
    for stream in (streams[0], streams[2]):
        with pytest.raises(UserError, match=message):
            stream.collect_texts()
    with pytest.raises(UserError, match="the grammar allows no next token"):
        run.generate([PROMPT], grammar=foreign, speculative="lookup")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"seed": 2, "top_k": 3},
        {"beam_size": 2},
        {"temperature": 0, "speculative": "lookup"},
        {"seed": 1, "speculative": "lookup"},
    ],
    ids=str,
)
def test_grammar_that_other_settings_forbid_is_refused(options):
    """Also at the last token."""
    run, grammar = make(), {"name": "regex", "pattern": "a( dog)+"}
    assert run.tokenizer.ids_to_tokens(run._encode_prompts([PROMPT])[0]) == ["a", "Ġdog"]
    for limit in (1, 2, 5):
        limits = {"no_repeat_ngram_size": 1, "max_new_tokens": limit}
        with pytest.raises(UserError, match="or no_repeat_ngram_size or a minimum length forbids it"):
            run.generate([PROMPT], grammar=grammar, **limits, **options)
