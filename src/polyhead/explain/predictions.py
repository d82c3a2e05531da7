"""What a model puts out for the texts of an explanation: next tokens, masked tokens, classes or a vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from polyhead.explain.inputs import InputSide
from polyhead.generation.engine.interface import require_finite
from polyhead.models import CausalLM, Classifier, MaskedLM, Model, ReplacedTokenDetector, Seq2Seq
from polyhead.tokenizers.display import spell_token
from polyhead.tokenizers.tokenizer import Tokenizer

SHOWN_TOKENS = 10  # most likely tokens at each position
_DIGITS = 9  # of a float32


def describe_predictions(
    model: Model, tokenizer: Tokenizer, output: Tensor, sides: Sequence[InputSide], window: tuple[int, int]
) -> dict[str, Any]:
    """The output of the model for the page, of the tokens in the window."""
    host = require_finite(output).float().cpu()
    side = len(sides) - 1
    if isinstance(model, Seq2Seq | CausalLM | MaskedLM):
        is_next = not isinstance(model, MaskedLM)
        expected = sides[side].next_ids if is_next else _expect_themselves(sides[side], tokenizer)
        positions = [
            {"position": i, **describe_logits(tokenizer, host[0, i], expected[i])} for i in range(*window)
        ]
        kind = "next token" if is_next else "masked token"
        return {"kind": kind, "side": side, "positions": positions}
    if isinstance(model, Classifier):
        labels, row = model.config.labels, host[0]
        p = row.softmax(-1) if len(labels) > 1 else row.sigmoid()
        rows = zip(labels, row.tolist(), p.tolist(), strict=True)
        classes = [{"label": label, "logit": round_float(x), "p": round_float(q)} for label, x, q in rows]
        return {"kind": "classes", "side": side, "classes": classes}
    if isinstance(model, ReplacedTokenDetector):
        row = host[0, slice(*window)]
        shares, logits = ([round_float(x) for x in numbers.tolist()] for numbers in (row.sigmoid(), row))
        return {"kind": "replaced", "side": side, "replaced": shares, "logits": logits}
    return {"kind": "vector", "side": side, "vector": [round_float(x) for x in host.flatten().tolist()]}


def describe_logits(
    tokenizer: Tokenizer, logits: Tensor, expected_id: int | None, k: int = SHOWN_TOKENS
) -> dict[str, Any]:
    """The k most likely tokens of logits (V,), their entropy, and the expected token with its rank."""
    log_p = logits.double().log_softmax(-1)
    _, ids = logits.topk(min(k, len(logits)))

    def describe(i: int) -> dict[str, Any]:
        text = spell_token(tokenizer, i) if i <= tokenizer.max_id else f"<{i}>"
        return {
            "id": i,
            "text": text,
            "logit": round_float(float(logits[i])),
            "p": round_float(float(log_p[i].exp())),
        }

    entropy = -(log_p.exp() * log_p).nan_to_num().sum() / torch.tensor(2.0).log()
    rank = None if expected_id is None else 1 + int((logits > logits[expected_id]).sum())
    return {
        "top": [describe(i) for i in ids.tolist()],
        "entropy": round_float(float(entropy)),
        "logsumexp": round_float(float(logits.double().logsumexp(-1))),
        "expected": None if expected_id is None else describe(expected_id) | {"rank": rank},
    }


def round_float(x: float) -> float:
    """A number with as many digits as a float32 has."""
    return float(f"{x:.{_DIGITS}g}")


def _expect_themselves(side: InputSide, tokenizer: Tokenizer) -> list[int | None]:
    """Every token is expected at its own position, except under a mask."""
    mask = tokenizer.role_ids.get("mask_token")
    return [None if i == mask else i for i in side.ids]
