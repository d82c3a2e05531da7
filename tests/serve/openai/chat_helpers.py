"""Conversations, and answers of the run to them."""

from typing import Any

from polyhead.generation.chat import parse_conversation
from polyhead.generation.text_output import TextOutput
from polyhead.run.run import Run

MESSAGES = [
    {"role": "system", "content": "two dogs"},
    {"role": "user", "content": "ein hund </s> bellt . 犬"},
    {"role": "assistant", "content": "a dog barks ."},
    {"role": "user", "content": "zwei hunde"},
]


def start_answer(run: Run, messages: Any, n: int = 1, **options: Any) -> TextOutput:
    """The output of the run for a conversation, with the options of a request."""
    if "max_tokens" in options:
        options["max_new_tokens"] = options.pop("max_tokens")
    request = run.chat_session().prepare_request(parse_conversation(messages), n=n, **({"seed": 0} | options))
    return run.engine().start_request(request)


def answer_text(run: Run, messages: Any, **options: Any) -> str:
    (text,) = start_answer(run, messages, **options).collect_texts()
    return text
