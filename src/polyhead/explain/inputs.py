"""The texts of an explanation as the model reads them: tokens with their bytes, and which are shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyhead.data.batching.encoder_inputs import collate_encoder_inputs
from polyhead.introspect.compute_attention import check_length, encode_input
from polyhead.models import Seq2Seq
from polyhead.nn.device import to_model_device
from polyhead.run.run import Run
from polyhead.run.run_examples import TextExample, choose_examples, find_target
from polyhead.tokenizers.display import BEGIN_MARK, name_token
from polyhead.tokenizers.languages import with_languages
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.word_boundaries import decode_token_bytes


class InputSide(NamedTuple):
    """One text that the model reads."""

    name: str  # text, source or target
    ids: list[int]
    next_ids: list[int | None]  # the token that each position should predict, None if there is none
    segments: list[int]
    is_decoder: bool


class ModelInputs(NamedTuple):
    """The texts, and the arguments of the model for them."""

    sides: list[InputSide]
    args: tuple[Tensor | None, ...]
    text: str
    target: str | None
    target_is: str | None  # "text": as given, "example": of the run's examples, "output": the run's own


def read_inputs(run: Run, text: str, target: str | None, examples: Iterable[TextExample] = ()) -> ModelInputs:
    """Encode a text as in inference, and its target in an encoder-decoder or the second text of a pair.

    An encoder-decoder without a target reads that of an example with this text, else its own output. A text
    that is too long for the model, and a target of a model that takes one text, is a UserError.
    """
    model, tokenizer = run.model, run.tokenizer
    if isinstance(model, Seq2Seq):
        return _read_pair(run, text, target, examples)
    ids, second_start = encode_input(model, tokenizer, run.prompt_template, text, target)
    is_decoder = run.config.kind == "decoder"
    args: tuple[Any, ...] = (torch.tensor([ids]),)
    if not is_decoder:
        batch = collate_encoder_inputs([ids], [second_start], tokenizer.pad_id)
        args = batch.model_args(run.config.n_segments)
    next_ids: list[int | None] = [*ids[1:], None] if is_decoder else [None] * len(ids)
    segments = [int(i >= second_start) for i in range(len(ids))]
    side = InputSide("text", ids, next_ids, segments, is_decoder)
    target_is = None if target is None else "text"
    return ModelInputs([side], to_model_device(model, args), text, target, target_is)


def _read_pair(run: Run, text: str, target: str | None, examples: Iterable[TextExample]) -> ModelInputs:
    tokenizer, max_len = run.tokenizer, run.config.max_len
    template = with_languages(tokenizer)
    (ids,) = tokenizer.encode([text])
    most, target_is = max_len - template.max_special, "text"
    check_length("text", ids, most)
    found = find_target(examples, text) if target is None else None
    if found and len(tokenizer.target_tokenizer.encode([found])[0]) <= most:
        target, target_is = found, "example"
    if target is None:
        target_ids, target_is = run.hypotheses([text], n_best=1)[0][0].tokens[:most], "output"
        target = tokenizer.target_tokenizer.decode([target_ids])[0]
    else:
        (target_ids,) = tokenizer.target_tokenizer.encode([target])
    check_length("target", target_ids, most)
    source_ids, input_ids = template.encoder_input(ids), template.decoder_input(target_ids)
    sides = [
        InputSide("source", source_ids, [None] * len(source_ids), [0] * len(source_ids), False),
        InputSide("target", input_ids, [*template.labels(target_ids)], [0] * len(input_ids), True),
    ]
    args = to_model_device(run.model, (torch.tensor([source_ids]), torch.tensor([input_ids])))
    return ModelInputs(sides, args, text, target, target_is)


def describe_side(side: InputSide, window: tuple[int, int], tokenizer: Tokenizer) -> dict[str, Any]:
    """A text for the page: all of its tokens, those that are shown, and what should follow each."""
    special, spelling = set(tokenizer.special_ids), decode_token_bytes(tokenizer)
    start_mark = BEGIN_MARK if side.name == "target" else ""
    return {
        "name": side.name,
        "role": "decoder input" if side.is_decoder else "encoder input",
        "tokens": [
            {
                "id": i,
                "text": name_token(tokenizer, i, start_mark if position == 0 else ""),
                "bytes": None if i in special else list(spelling.get(i, b"")),
                "special": i in special,
                "mark": _mark(tokenizer, i, position, side) if i in special else "",
                "segment": segment,
            }
            for position, (i, segment) in enumerate(zip(side.ids, side.segments, strict=True))
        ],
        "window": list(window),
        "next": side.next_ids,
        "next_text": [None if i is None else name_token(tokenizer, i) for i in side.next_ids],
    }


def _mark(tokenizer: Tokenizer, token: int, position: int, side: InputSide) -> str:
    """What a special token marks: begin, end, mask, separator, unknown or other."""
    if token == tokenizer.role_ids.get("mask_token"):
        return "mask"
    if token == tokenizer.role_ids.get("unk_token"):
        return "unknown"
    if position == 0:
        return "begin"
    return "end" if position == len(side.ids) - 1 else "separator"


def choose_windows(
    sides: Sequence[InputSide], n_shown: int, first: int | None = None
) -> list[tuple[int, int]]:
    """The tokens of each text that are shown: all, or ``n_shown`` of a longer one.

    They start at token ``first``; by default they are the last ones of a language model's text, whose next
    token is predicted, and the first ones of any other.
    """
    windows = []
    for side in sides:
        length = len(side.ids)
        start = first if first is not None else length if side.is_decoder and len(sides) == 1 else 0
        start = max(0, min(start, length - n_shown))
        windows.append((start, min(length, start + n_shown)))
    return windows


def choose_text(examples: Sequence[TextExample], kind: str) -> tuple[str, str | None]:
    """Return the first of the short examples, with the second text of a pair if a classifier reads it."""
    texts = [example[:1] for example in examples] if kind == "encoder-decoder" else examples
    text, *second = (choose_examples(texts) or texts)[0]
    return text, second[0] if second else None
