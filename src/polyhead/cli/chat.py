"""``polyhead chat``: converse with a language model, in a terminal or a pipe."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyhead.cli.line_io import (
    UnansweredLines,
    decode_lines,
    escape_terminal,
    read_lines,
    read_typed_lines,
    report_unknown_outputs,
)
from polyhead.cli.options import (
    ChatTemplateOption,
    Device,
    Dtype,
    EnsembleOption,
    check_kind,
    config_options,
    load_run,
    read_chat_template,
)
from polyhead.config.generation_config import GenerationConfig, verb_settings
from polyhead.core.blank_text import clear_blank
from polyhead.core.errors import NotFiniteError, UserError, did_you_mean
from polyhead.core.i18n import translate_message

if TYPE_CHECKING:
    from polyhead.chat.base import Message
    from polyhead.generation.chat import ChatSession

COMMANDS = {"/reset": "clears the conversation", "/quit": "exits, as does Ctrl-D"}


@config_options(GenerationConfig, *verb_settings("chat"), heading="Decoding")
def run(
    directory: Annotated[str, typer.Argument(metavar="RUN", help="path of a run or of a checkpoint")],
    system: Annotated[str, typer.Option(help="system message", show_default="none")] = "",
    *,
    chat_template: ChatTemplateOption = None,
    seed: Annotated[int, typer.Option(min=0, help="random seed; the same seed gives the same answers")] = 0,
    stop: Annotated[
        list[str] | None, typer.Option(help="stop string that ends an answer; may be repeated")
    ] = None,
    others: EnsembleOption = None,
    dtype: Dtype = "fp32",
    device: Device = "auto",
    **settings: Any,
) -> None:
    """Chat with a language model: answers are streamed, and earlier turns are part of the prompt.

    Ctrl-C stops an answer, /reset clears the conversation, /quit or Ctrl-D exits. From a pipe, every line is
    one message; one that is refused gets a blank line and is named on standard error. If a conversation
    exceeds the maximum length of the model, its oldest questions are dropped.

    \b
    polyhead chat runs/assistant
    polyhead chat runs/assistant --system "Answer in one sentence." --temperature 0
    echo "Hello" | polyhead chat runs/assistant
    """
    check_kind(directory, "decoder")
    read_chat_template(chat_template, settings)
    loaded = load_run(directory, others, dtype, device, "decoder")
    engine_options = {key: settings.pop(key) for key in ("cache", "speculative") if key in settings}
    session = loaded.chat_session(settings.pop("chat", None), max_num_seqs=1, **engine_options)
    conversation = TerminalChat(session, system, settings | {"stop": stop or []}, seed)
    conversation.check_options()
    unanswered, num_unknown = UnansweredLines(), 0
    if sys.stdin.isatty():
        commands = "; ".join(f"{command} {description}" for command, description in COMMANDS.items())
        print(f"{session.choice.name}: Ctrl-C stops an answer; {commands}", file=sys.stderr)
    for number, line in enumerate(read_messages(), 1):
        if line in COMMANDS:
            if line == "/quit":
                break
            conversation.reset()
        elif line.startswith("/") and " " not in line and sys.stdin.isatty():
            print(f"no command {line}{did_you_mean(line, COMMANDS)}", file=sys.stderr)
        elif line:
            try:
                num_unknown += conversation.send(line)
            except UserError as error:
                if sys.stdin.isatty():
                    print(f"polyhead: {error}", file=sys.stderr)
                elif isinstance(error, NotFiniteError):
                    raise
                else:
                    print()
                    unanswered.report({number: translate_message(str(error))})
            if sys.stdin.isatty():
                report_unknown_outputs(num_unknown)
                num_unknown = 0
    unanswered.close()
    report_unknown_outputs(num_unknown)


class TerminalChat:
    """A conversation with its history."""

    def __init__(self, chat: ChatSession, system: str, options: dict[str, Any], seed: int) -> None:
        self.chat, self.options, self.seed = chat, options, seed
        self.system, self.turn = system, 0
        self.history: list[Message] = []
        self.reset()

    def check_options(self) -> None:
        """Raise a UserError if every message would be refused: for an option or the system message."""
        from polyhead.chat.base import Message

        self.chat.prepare_request([*self.history, Message("user", "?")], **self.options)

    def reset(self) -> None:
        """Clear the history."""
        from polyhead.chat.base import Message

        self.history = [Message("system", self.system)] if self.system else []

    def send(self, content: str) -> bool:
        """Send a message and print the answer as it is generated; both are stored.

        Returns whether the answer has unknown tokens. A refused message is a UserError, and is dropped.
        """
        from polyhead.chat.base import Message

        messages = [*self.history, Message("user", content)]
        prompt = self.chat.history_within(messages, self.options)
        answer = self.chat.start_answer(prompt, seed=self.seed + self.turn, **self.options)
        text = "".join(print_answer(delta.text for delta in answer))
        answer.cancel()
        if len(prompt.messages) < len(messages):
            print("polyhead: the conversation is too long: its oldest messages are dropped", file=sys.stderr)
        self.history = [*prompt.messages, Message("assistant", text)]
        self.turn += 1
        return answer.num_unknown_tokens > 0


def read_messages() -> Iterator[str]:
    """Yield the messages, one per line."""
    if sys.stdin.isatty():
        lines = decode_lines(read_typed_lines(is_interruptible=False), "the input")
    else:
        lines = read_lines("-")
    yield from (clear_blank(line.strip()) for line in lines)


def print_answer(answer: Iterator[str]) -> Iterator[str]:
    """Print each delta of an answer and yield it; Ctrl-C stops between two of them."""
    with catch_interrupts() as interrupts:
        for delta in answer:
            print(escape_terminal(delta), end="", flush=True)
            yield delta
            if interrupts:
                break
    print()


@contextmanager
def catch_interrupts() -> Iterator[list[int]]:
    """Yield a list that Ctrl-C appends to, so that no decoding step is interrupted.

    A second Ctrl-C raises KeyboardInterrupt as usual. Without a terminal, Ctrl-C is not caught.
    """
    interrupts: list[int] = []
    if not sys.stdin.isatty():
        yield interrupts
        return

    def on_interrupt(signum: int, frame: FrameType | None) -> None:
        if interrupts:
            raise KeyboardInterrupt
        interrupts.append(signum)

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, previous)
