import pytest
from tests.generation.helpers import REFUSALS, ids_by_row
from tests.generation.penalties_helpers import NO_EOS, PENALTIES, PROMPTS, decode_penalised
from tests.generation.penalties_helpers import model as model
from tests.generation.run_helpers import TEXTS, make_run

from polyhead.core.errors import UserError
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.generate import generate


@pytest.mark.parametrize("name", PENALTIES)
def test_greedy_text_follows_the_formula(model, name):
    expected = [decode_penalised(model, prompt, PENALTIES[name], 25) for prompt in PROMPTS]
    assert expected != [decode_penalised(model, prompt, {}, 25) for prompt in PROMPTS] or name == "negative"
    sampling = Sampling(temperature=0.0, **PENALTIES[name])
    events = generate(model, PROMPTS, sampling=sampling, eos_id=NO_EOS, max_new_tokens=25)
    assert ids_by_row(events, 3) == expected


def submit(run, text, **options):
    return run.engine().submit(text, **options).collect_texts()


def test_penalties_count_outputs_alone():
    run = make_run("encoder-decoder")
    token = run.tokenizer.encode(["dogs"])[0][0]
    (text,) = submit(run, "a dog", temperature=0.0, logit_bias={token: 100.0})
    assert text.replace(run.tokenizer.decode([[token]])[0], "") == ""
    plain = submit(run, "a dog", temperature=0.0)
    assert submit(run, "a dog", frequency_penalty=2.0, temperature=0.0) != plain
    run = make_run("decoder")
    penalties = {"frequency_penalty": 1.1, "presence_penalty": 0.3, "logit_bias": {9: 3.0, "40": -100}}
    plain = penalties | {"logit_bias": ((9, 3.0), (40, -100.0))}
    for text in TEXTS[:2]:
        tokens = decode_penalised(run.model, run.tokenizer.encode([text])[0], plain, 15)
        if (end := run.tokenizer.eos_id) in tokens:
            tokens = tokens[: tokens.index(end)]
        expected = [run.tokenizer.decode([tokens])[0].rstrip("\ufffd")]
        greedy = penalties | {"temperature": 0.0}
        assert run.generate([text], **greedy) == expected
        assert run.generate([text], speculative="lookup", **greedy) == expected
        assert submit(run, text, **greedy) == expected
        for options in ({"seed": 3, "n": 3}, {"seed": 5, "top_p": 0.9, "n": 2}):
            assert [submit(run, text, **options, **penalties)] == run.generate([text], **options, **penalties)


def test_logit_bias_does_not_break_a_grammar():
    pytest.importorskip("llguidance")
    run, choices = make_run("decoder"), ["dogs", "犬"]
    foreign = run.tokenizer.encode(["z"])[0][0]
    token_bytes = {i: bytes(data) for i, data in run.tokenizer.token_bytes.items() if data}
    starts = {t: [i for i, data in token_bytes.items() if t.encode().startswith(data)] for t in choices}
    for options in (
        {"temperature": 0.0},
        {"temperature": 2.0, "n": 5},
        {"temperature": 0.0, "speculative": "lookup"},
    ):
        options = {"n": 1} | options
        for other, text in zip(choices, reversed(choices), strict=True):
            bias = {foreign: 100.0} | dict.fromkeys(starts[other], -100.0)
            grammar = {"name": "choice", "choices": choices}
            outputs = run.generate(["a dog"], grammar=grammar, logit_bias=bias, **options)
            assert {one for texts in outputs for one in texts} == {text}
        assert "z" in "".join(run.generate(["a dog"], logit_bias={foreign: 100.0}, **options)[0])


@pytest.mark.parametrize(("options", "message"), REFUSALS["penalties"], ids=str)
def test_invalid_penalties_are_refused_in_one_line(options, message):
    run, translator = make_run("decoder"), make_run("encoder-decoder")
    for request in (
        lambda: submit(run, "a dog", **options),
        lambda: submit(translator, "a dog", **options),
        lambda: run.generate(["a dog"], **options),
    ):
        with pytest.raises(UserError, match=message) as error:
            request()
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="has no effect on beam search"):
        run.generate(["a"], beam_size=2, **options)
