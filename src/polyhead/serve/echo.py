"""Outputs of a completion as a client is told of them: what was said, behind the prompt where that is echoed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from polyhead.analysis.scoring import score_tokens
from polyhead.generate.outcome import Likely
from polyhead.generate.service import Asked
from polyhead.run import Run
from polyhead.serve.bodies import CompletionBody
from polyhead.serve.likelihood import NUMBER, check_size, of_completion, places
from polyhead.serve.refusal import Refusal
from polyhead.serve.service import Service, size
from polyhead.serve.talk import Piece, Talks


class Echo(NamedTuple):
    """What an output begins with."""

    text: str = ""
    told: dict[str, list[Any]] | None = None  # of its tokens, where that is wished


class Output:
    """One text that is being said, piece by piece; ``wanted`` others are told with each token, None: no token is."""

    def __init__(self, run: Run, before: Sequence[int], echo: Echo, wanted: int | None) -> None:
        self.run, self.echo, self.wanted = run, echo, wanted or 0
        self.places = None if wanted is None else places(run.tokenizer, before, len(echo.text))

    def told(self, piece: Piece) -> dict[str, Any]:
        """A piece, the first one with the echo before it."""
        echo, self.echo, told = self.echo, Echo(), None
        if self.places is not None:
            told = of_completion(self.run, piece.likely, self.wanted, self.places.of(piece.likely.tokens))
            told = {name: echo.told[name] + own for name, own in told.items()} if echo.told else told
        return {"text": echo.text + piece.text, "logprobs": told}


def bounded(service: Service, body: CompletionBody, found: list[Asked]) -> list[Asked]:
    """The texts, if what is told of their tokens is not far longer: a token in a request is short."""
    tokens, most = sum(len(one.prompt) for one in found), service.limits.body
    told = NUMBER * tokens * (1 + body.logprobs) * body.n
    if "logprobs" not in body.model_fields_set:
        return found
    if body.echo and told > most:
        raise Refusal(
            400,
            "answer_too_long",
            f"prompts of {tokens:,} tokens would be told in {told:,} characters, {most:,} at most: "
            "send fewer at once, or a lower n or logprobs",
            "prompt",
        )
    check_size(service, found, body.logprobs, NUMBER, "logprobs")
    return found


async def echoed(
    service: Service, body: CompletionBody, talks: Talks, wanted: int | None
) -> dict[tuple[int, int], Output]:
    """The outputs of each text, by the numbers of both."""
    read = [talk.asked.before for talk in talks.all]
    echoes = await _echoes(service, body, read, wanted) if body.echo else [Echo()] * len(read)
    return {
        (number, row): Output(service.run, ids, echo, wanted)
        for number, (ids, echo) in enumerate(zip(read, echoes, strict=True))
        for row in range(body.n)
    }


async def _echoes(
    service: Service, body: CompletionBody, read: list[list[int]], wanted: int | None
) -> list[Echo]:
    """The prompts, of which the model has read these tokens, and how likely each of them was."""
    run, prompts = service.run, body.prompt
    model: Any = run.model

    def judge(rows: list[list[int]]) -> list[Likely]:
        return score_tokens(model, run.tokenizer.pad_id, rows, wanted or 0)

    def echoes() -> list[Echo]:
        texts = [one if isinstance(one, str) else run.tokenizer.decode([one])[0] for one in prompts]
        if wanted is None:
            return [Echo(text) for text in texts]
        given = zip(texts, prompts, read, likely, strict=True)
        return [Echo(text, _told(run, wanted, *one)) for text, *one in given]

    likely = [] if wanted is None else await service.compute_more(("prompts", wanted), judge, read)
    return await service.aside(echoes, size(prompts))


def _told(
    run: Run, wanted: int, prompt: str | list[int], ids: list[int], likely: Likely
) -> dict[str, list[Any]]:
    """What is told of the tokens of a prompt; of the first it cannot be said how likely it was."""
    t = run.tokenizer
    at = t.located(prompt)[1] if isinstance(prompt, str) else places(t).of(prompt)
    # what a text begins with for the model stands at its beginning, and what was cut away stands nowhere
    at = [*[0] * (len(ids) - len(at)), *at][-len(ids) :]
    told = of_completion(run, Likely(ids, [0.0, *likely.log_probs], [(), *likely.tops]), wanted, at)
    unsaid = {"token_logprobs", "top_logprobs"} & told.keys()
    return told | {name: [None, *told[name][1:]] for name in unsaid}
