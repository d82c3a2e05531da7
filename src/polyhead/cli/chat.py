"""``polyhead chat``: a conversation with a language model, in a terminal or a pipe."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyhead.cli.lines import decoded, harmless, read_lines
from polyhead.cli.options import (
    AS_TRAINED,
    CacheName,
    Device,
    Dtype,
    Form,
    FrequencyPenalty,
    MinP,
    NoRepeat,
    PresencePenalty,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
    With,
    opened,
    parts,
    tell_unguessed,
    typed,
)
from polyhead.document import parse_part
from polyhead.errors import UserError, nearest

if TYPE_CHECKING:
    from polyhead.generate.chat import Chat
    from polyhead.text.chat.base import Message

COMMANDS = {"/reset": "forgets what was said", "/quit": "ends, as Ctrl-D does"}


def run(
    directory: Annotated[str, typer.Argument(metavar="RUN", help="directory of a run, or of a checkpoint")],
    chat: Annotated[
        str | None,
        typer.Option(
            help="how conversations are written, e.g. chatml; see polyhead parts chat",
            show_default=AS_TRAINED,
        ),
    ] = None,
    system: Annotated[str, typer.Option(help="what the system says first", show_default="nothing")] = "",
    max_new_tokens: Annotated[
        int | None, typer.Option(help="longest answer, in tokens", show_default=AS_TRAINED)
    ] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    presence_penalty: PresencePenalty = None,
    seed: Annotated[int, typer.Option(min=0, help="the same seed gives the same answers")] = 0,
    stop: Annotated[
        list[str] | None, typer.Option(help="text that ends an answer; may be given again")
    ] = None,
    no_repeat_ngram_size: NoRepeat = None,
    form: Form = None,
    cache: CacheName = None,
    others: With = None,
    dtype: Dtype = "fp32",
    device: Device = "auto",
) -> None:
    """Converse with a language model; it answers as it thinks, and knows what was said before.

    Ctrl-C stops an answer, /reset forgets all, /quit or Ctrl-D ends. Of a pipe every line is a message. A conversation that
    outgrows the model loses its oldest questions.

    \b
    polyhead chat runs/assistant
    polyhead chat runs/assistant --system "Answer in one sentence." --temperature 0
    echo "Hello" | polyhead chat runs/assistant
    """
    wishes = typed(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
    ) | {"stop": stop or []}
    wishes |= parts(form=form)
    loaded = opened(directory, others, dtype, device)
    tell_unguessed(loaded)
    options: dict[str, Any] = {"rows": 1} | parts(cache=cache)
    talker = loaded.talker(parse_part(chat) if chat else None, **options)
    talk = Talk(talker, system, wishes, seed)
    if sys.stdin.isatty():
        told = "; ".join(f"{command} {what}" for command, what in COMMANDS.items())
        print(f"{talker.choice.name}: Ctrl-C stops an answer; {told}", file=sys.stderr)
    for line in messages():
        if line in COMMANDS:
            if line == "/quit":
                return
            talk.forget()
        elif line.startswith("/") and " " not in line and sys.stdin.isatty():
            print(f"no command {line}{nearest(line, COMMANDS)}", file=sys.stderr)
        elif line:
            talk.say(line)


class Talk:
    """A conversation, and how it goes on."""

    def __init__(self, talker: Chat, system: str, wishes: dict[str, Any], seed: int) -> None:
        self.talker, self.wishes, self.seed = talker, wishes, seed
        self.system, self.turn = system, 0
        self.history: list[Message] = []
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        from polyhead.text.chat.base import Message

        self.history = [Message("system", self.system)] if self.system else []

    def say(self, content: str) -> None:
        """Ask, show the answer as it comes, and remember both; what cannot be asked is forgotten."""
        from polyhead.text.chat.base import Message

        try:
            asked = [*self.history, Message("user", content)]
            kept = self.talker.kept(asked, self.wishes)
            answer = self.talker.answer(kept, seed=self.seed + self.turn, **self.wishes)
            said = "".join(shown(answer))
        except UserError as error:
            if not sys.stdin.isatty():
                raise
            print(f"polyhead: {error}", file=sys.stderr)
            return
        if len(kept) < len(asked):
            print(
                "polyhead: the conversation is too long: its oldest messages are no longer read",
                file=sys.stderr,
            )
        self.history = [*kept, Message("assistant", said)]
        self.turn += 1


def messages() -> Iterator[str]:
    """What is said, line by line, until there is no more."""
    said = decoded(typed_lines(), "what was typed") if sys.stdin.isatty() else read_lines("-")
    yield from (line.strip() for line in said)


def typed_lines() -> Iterator[bytes]:
    """What a person types, line by line, as the bytes that came."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    with suppress(ImportError):
        import readline  # noqa: F401  # gives input() the keys of a line editor
    while True:
        try:
            yield input("> ").encode(errors="surrogateescape")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()


def shown(answer: Iterator[str]) -> Iterator[str]:
    """The pieces of an answer, each printed as it comes; Ctrl-C ends it between two of them."""
    with interrupts() as wanted:
        for piece in answer:
            print(harmless(piece), end="", flush=True)
            yield piece
            if wanted:
                break
    print()


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """A list that Ctrl-C adds to, so that no step of a model is cut in the middle; a second one is the usual kind.

    Where nobody sits at a terminal Ctrl-C is what it always is.
    """
    wanted: list[int] = []
    if not sys.stdin.isatty():
        yield wanted
        return

    def note(number: int, frame: FrameType | None) -> None:
        if wanted:
            raise KeyboardInterrupt
        wanted.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield wanted
    finally:
        signal.signal(signal.SIGINT, before)
