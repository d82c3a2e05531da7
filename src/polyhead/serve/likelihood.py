"""How likely each token was and what else could have stood there, in the two shapes of OpenAI's answers."""

from __future__ import annotations

from typing import Any

from polyhead.generate.service import Likely
from polyhead.run import Run
from polyhead.serve.strict import finite


def of_completion(run: Run, likely: Likely, wanted: int) -> dict[str, Any]:
    """Lists side by side; with alternatives the token that was said is always among them."""
    told: dict[str, Any] = {
        "tokens": [run.display(token) for token in likely.tokens],
        "token_logprobs": [finite(value) for value in likely.log_probs],
    }
    if wanted:
        told["top_logprobs"] = [
            {run.display(other): finite(p) for other, p in reversed((*top, (token, value)))}
            for token, value, top in zip(*likely, strict=True)
        ]
    return told


def of_chat(run: Run, likely: Likely) -> dict[str, Any]:
    """A list of tokens, each with its alternatives, the likeliest first."""
    content = [
        _entry(run, token, value) | {"top_logprobs": [_entry(run, *other) for other in top]}
        for token, value, top in zip(*likely, strict=True)
    ]
    return {"content": content, "refusal": None}


def _entry(run: Run, token: int, log_prob: float) -> dict[str, Any]:
    name = run.display(token)
    return {"token": name, "logprob": finite(log_prob), "bytes": list(name.replace("␣", " ").encode())}
