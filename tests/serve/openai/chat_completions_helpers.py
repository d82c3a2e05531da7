"""Shared by the tests of chat_completions."""

from __future__ import annotations

import pytest
from tests.serve.conftest import living, make

from polyhead import Choice
from polyhead.generation.chat import parse_conversation
from polyhead.run.run import Run

TALK = [
    {"role": "system", "content": "two dogs"},
    {"role": "user", "content": "ein hund </s> bellt . 犬"},
    {"role": "assistant", "content": "a dog barks ."},
    {"role": "user", "content": "zwei hunde"},
]


@pytest.fixture(scope="module")
def live():
    """A model that reads 200 tokens and converses."""
    made = make("decoder", max_len=200)
    settings = made.generation.model_copy(update={"chat": Choice("plain")})
    with living(Run(made.model, made.tokenizer, settings)) as found:
        yield found


def wanted(run, talk, n=1, **way):
    names = {"max_tokens": "max_new_tokens"}
    talker = run.chat_session()
    changes = {names.get(name, name): value for name, value in way.items()}
    return run.engine().start_request(
        talker.prepare_request(parse_conversation(talk), n=n, **({"seed": 0} | changes))
    )
