"""The decoding loop in its plainest form: a model, a cache, and the most likely token. Read this one first.

The engine (``generation/engine``) does the same for many requests at once; tests hold both to equal tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from polyhead.cache.factory import make_cache
from polyhead.core.choice import Choice
from polyhead.generation.engine.request import Decoder
from polyhead.nn.kv import EncoderMemory


@torch.inference_mode()
def greedy_decode(
    model: Decoder,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    eos_id: int | None = None,
    cache: Choice | None = None,
    memory: list[EncoderMemory] | None = None,
) -> list[int]:
    """Continue a prompt with the most likely token at each step; ``eos_id`` ends the output and is not in it.

    The first step reads the whole prompt (prefill), each later one the newest token; the cache has the rest.
    ``memory`` is the source of an encoder-decoder, as its ``encode`` returns it.
    """
    device = model.cache_shape.device
    kv_cache = make_cache(cache, model.cache_shape, n_rows=1, max_len=len(prompt) + max_new_tokens)
    output: list[int] = []
    unread, position = list(prompt), 0
    while len(output) < max_new_tokens:
        tokens = torch.tensor([unread], device=device)
        pos = torch.arange(position, position + len(unread), device=device)[None]
        kv_cache.prepare_step([0], pos)
        logits = model.decode(tokens, pos, kv_cache, memory)
        next_id = int(logits[0, -1].argmax())
        if next_id == eos_id:
            break
        output.append(next_id)
        unread, position = [next_id], position + len(unread)
    return output
