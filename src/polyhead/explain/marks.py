"""How a model learnt one text: attention weights, best guesses and losses at steps of its training."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Container
from pathlib import Path
from typing import Any

import torch

from polyhead.core.atomic_io import read_regular_file, remove, replace_file
from polyhead.explain.document import run_model
from polyhead.explain.inputs import choose_windows, describe_side, read_inputs
from polyhead.explain.search import describe_predictions
from polyhead.explain.trace import Facts
from polyhead.introspect.compute_attention import record_attention
from polyhead.models import MaskedLM
from polyhead.run.run import Run

MARKS_DIRECTORY = "marks"
MAX_MARK_BYTES = 30_000
MAX_SHOWN_MARKS = 24  # on a page
_MAX_WEIGHTS, _MAX_TOKENS = 15_000, 40  # stored of a mark: one byte of each weight
_MASK_EVERY = 4  # tokens of a masked language model


def write_mark(run: Run, text: str, target: str | None, step: int, directory: Path) -> None:
    """Write what the current weights make of a text into a run directory."""
    path = directory / MARKS_DIRECTORY / f"{step}.json"
    path.parent.mkdir(exist_ok=True)
    mark = {"step": step, "text": text} | describe_mark(run, text, target)
    replace_file(path, json.dumps(mark, ensure_ascii=False, separators=(",", ":")).encode())


def drop_marks(directory: Path, from_step: int) -> None:
    """Remove the marks after a step, as they will be written again; from step 0 all."""
    for step, path in _list_marks(directory):
        if step > from_step or not from_step:
            remove(path)


def read_marks(directory: Path) -> list[Facts]:
    """The marks of a run in order of their steps, evenly chosen if there are many; empty without them."""
    marks = _list_marks(directory)
    n = min(len(marks), MAX_SHOWN_MARKS)
    chosen = [marks[round(i * (len(marks) - 1) / max(n - 1, 1))][1] for i in range(n)]
    return [json.loads(read_regular_file(path, max_bytes=2 * MAX_MARK_BYTES)) for path in chosen]


def _list_marks(directory: Path) -> list[tuple[int, Path]]:
    paths = (directory / MARKS_DIRECTORY).glob("*.json")
    return sorted((int(path.stem), path) for path in paths if path.stem.isdecimal())


@torch.inference_mode()
def describe_mark(run: Run, text: str, target: str | None) -> Facts:
    """Tokens, attention weights in 255ths, best guesses, and the losses −ln p of the expected tokens.

    A masked language model fills every fourth token.
    """
    inputs, hidden = read_inputs(run, text, target), set[int]()
    mask, ids = run.tokenizer.role_ids.get("mask_token"), inputs.args[0]
    if isinstance(run.model, MaskedLM) and mask is not None and ids is not None:
        hidden = {*range(1, len(inputs.sides[0].ids) - 1, _MASK_EVERY)}
        ids[0, sorted(hidden)] = mask
    with record_attention(run.model) as passes:
        output = run_model(run, inputs)
    calls = [(name, i, weights[0]) for name, calls in passes.items() for i, weights in enumerate(calls)]
    n = math.isqrt(_MAX_WEIGHTS // max(sum(len(weights) for *_, weights in calls), 1))
    windows = choose_windows(inputs.sides, min(n, _MAX_TOKENS), 0)
    attention = []
    for name, i, weights in calls:
        row_side = 0 if name.startswith("encoder") else len(windows) - 1
        sides = row_side, 0 if name.endswith(".cross") else row_side
        rows, columns = (slice(*windows[side]) for side in sides)
        levels = (255 * weights[:, rows, columns]).round().to(torch.uint8).cpu().contiguous()
        data = base64.b64encode(levels.numpy().tobytes()).decode()
        attention.append({"path": name, "call": i, "sides": sides, "shape": [*levels.shape], "data": data})
    sides_of = zip(inputs.sides, windows, (run.tokenizer, run.tokenizer.target_tokenizer), strict=False)
    tokens = [describe_side(*side)["tokens"][slice(*side[1])] for side in sides_of]
    predictions = describe_predictions(run.model, run.tokenizer, output, inputs.sides, windows[-1])
    guesses = list_guesses(predictions, hidden)
    losses = [loss for *_, loss in guesses if loss is not None]
    return {
        "tokens": [[token["text"] for token in side] for side in tokens],
        "attention": attention,
        "guesses": guesses,
        "loss": sum(losses) / len(losses) if losses else None,
    }


def list_guesses(predictions: Facts, hidden: Container[int]) -> list[tuple[Any, str | None, float | None]]:
    """Of each token the best three guesses with their probabilities, the expected token, and its loss.

    A masked language model has a loss at its ``hidden`` tokens, a classifier of a text without a label none.
    """
    if "classes" in predictions:
        classes = sorted(predictions["classes"], key=lambda one: -one["p"])[:3]
        return [([(one["label"], one["p"]) for one in classes], None, None)]
    # of a detector: no token of the text is replaced
    shares = predictions.get("replaced", [])
    guesses: list[Any] = [([("replaced", p)], "original", -math.log(max(1 - p, 1e-12))) for p in shares]
    for one in predictions.get("positions", []):
        right = one["expected"] if predictions["kind"] == "next token" or one["position"] in hidden else None
        loss = None if right is None else one["logsumexp"] - right["logit"]
        guesses.append(([(top["text"], top["p"]) for top in one["top"][:3]], right and right["text"], loss))
    return guesses
