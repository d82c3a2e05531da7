import re

import pytest
import torch
from tests.run.run_helpers import make_run

from polyhead.core.errors import UserError

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark ."]
CONFIGS = {"translator": {}, "decoder": {"kind": "decoder"}, "encoder": {"kind": "encoder"}}
CONFIGS |= {"classifier": {"kind": "encoder", "labels": ("n", "y")}}
# verbs by the number of lists of texts that they take
VERBS = {"translator": {"translate": 1, "hypotheses": 1, "score": 2, "perplexity": 2, "evaluate": 2}}
VERBS |= {"decoder": dict.fromkeys(("generate", "stream", "hypotheses", "score", "perplexity", "embed"), 1)}
VERBS |= {"encoder": {"embed": 1, "fill_mask": 1}, "classifier": {"classify": 1}}
ONE_LIST = [(kind, verb) for kind, verbs in VERBS.items() for verb, n in verbs.items() if n == 1]


@pytest.fixture(scope="module")
def runs():
    return {kind: make_run(**config) for kind, config in CONFIGS.items()}


def test_only_lists_of_texts_are_accepted(runs):
    for kind, verbs in VERBS.items():
        for verb, n in verbs.items():
            arguments = ", ".join(['["..."]'] * n)
            message = f"run.{verb} expects a list of texts, got one text; write run.{verb}({arguments})"
            for text in ("ein hund", b"ein hund"):
                with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
                    getattr(runs[kind], verb)(*[text] * n)
    message = r'^prefix expects a list of texts, got one text; write prefix=\["..."\]$'
    with pytest.raises(UserError, match=message):
        runs["translator"].translate(["ein hund"], prefix="a")
    translator = runs["translator"]
    calls = [getattr(runs[kind], verb) for kind, verb in ONE_LIST]
    calls += [
        lambda texts: translator.score(texts, TEXTS),
        lambda texts: translator.score(TEXTS, texts),
        lambda texts: translator.translate(TEXTS, prefix=texts),
        lambda texts: translator.evaluate(texts, TEXTS),
    ]
    write = r"write (prefix=|run\.\w+\()list\(texts\)"
    for call in calls:
        for texts, message in (
            ((text for text in TEXTS), f"expects a list of texts, got generator; {write}"),
            (set(TEXTS), f"expects a list of texts, got set; {write}"),
            (7, r"expects a list of texts, got int$"),
            ([7] * len(TEXTS), "text 1 is int, expected a string"),
        ):
            with pytest.raises(UserError, match=message):
                call(texts)
    with pytest.raises(UserError, match=r"run\.evaluate expects a list of texts, got generator"):
        translator.evaluate(TEXTS, (text for text in TEXTS))
    decoder = runs["decoder"]
    assert decoder.score(dict.fromkeys(TEXTS).keys()) == decoder.score(TEXTS)
    encoder = runs["encoder"]
    max_id = encoder.tokenizer.vocab_size - 1
    for ids in ([max_id + 1], [-1], [True], [0.5], ["a"], [None]):
        message = f"text 2 has no token .*; the vocabulary has 0 to {max_id}"
        with pytest.raises(UserError, match=message):
            encoder.embed([TEXTS[0], ids])
    message = "^text 1 is Tensor, expected a string or its token ids$"  # the ids of one text
    for call in (encoder.embed, encoder.embed_tokens):
        with pytest.raises(UserError, match=message):
            call(torch.tensor([1, 2]))
    with pytest.raises(UserError, match=r"^reference 0 is 7; expected a text or a list of texts$"):
        translator.evaluate(TEXTS, [7])
    first, second = encoder.embed([encoder.tokenizer.encode(TEXTS)[0], TEXTS[0]])
    assert torch.equal(first, second)


@pytest.mark.parametrize(("stop", "value"), [(None, "null"), (3, "3"), ([None], r"\[None\]")])
def test_stop_must_be_texts(stop, value, runs):
    decoder, message = runs["decoder"], f"^stop is {value}; expected a text or a list of texts"
    with pytest.raises(UserError, match=message):
        decoder.generate(TEXTS, stop=stop)
    with pytest.raises(UserError, match=message):
        decoder.engine().submit(TEXTS[0], stop=stop)


@pytest.mark.parametrize("verb", ["classify", "predict_classes"])
def test_texts_and_pairs_are_not_mixed(verb, runs):
    with pytest.raises(UserError, match=r"^text 3 is 'ein hund', expected a pair of texts$"):
        getattr(runs["classifier"], verb)([("a", "b"), ("c", "d"), "ein hund"])
