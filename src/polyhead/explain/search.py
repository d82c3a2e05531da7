"""How a run chooses its output: what every step of its search or sampling considers, and what it keeps.

The strategies of the engine do the work; they are advance_and_record while they advance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from polyhead.explain.inputs import InputSide
from polyhead.explain.trace import Facts
from polyhead.generation.batch_decode import beam_state_for, beam_strategy, max_output_len
from polyhead.generation.decoding.beam_search import BeamRequest, BeamSearchStrategy, BeamState
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.engine.engine import Engine
from polyhead.generation.engine.request import (
    Decoder,
    DecodingState,
    Hypothesis,
    normalize_score,
    require_finite,
)
from polyhead.generation.settings import eos_ids_for, sampling_from_config
from polyhead.generation.shortlist.shortlist import ShortlistHead
from polyhead.models import CausalLM, Classifier, MaskedLM, Model, ReplacedTokenDetector, Seq2Seq
from polyhead.run.run import Run
from polyhead.tokenizers.display import END_MARK, name_token, tokens_to_text
from polyhead.tokenizers.languages import with_languages
from polyhead.tokenizers.tokenizer import Tokenizer

Steps = list[Facts]

SHOWN_TOKENS = 10  # most likely tokens at each position
_DIGITS = 9  # of a float32


def describe_predictions(
    model: Model, tokenizer: Tokenizer, output: Tensor, sides: Sequence[InputSide], window: tuple[int, int]
) -> Facts:
    """The output of the model for the page, of the tokens in the window."""
    host = require_finite(output).float().cpu()
    side = len(sides) - 1
    if isinstance(model, Seq2Seq | CausalLM | MaskedLM):
        is_next = not isinstance(model, MaskedLM)
        expected, mask = sides[side].next_ids, tokenizer.role_ids.get("mask_token")
        if not is_next:  # every token is expected at its own position, except under a mask
            expected = [None if i == mask else i for i in sides[side].ids]
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
) -> Facts:
    """The k most likely tokens of logits (V,), their entropy, and the expected token with its rank."""
    log_p = logits.double().log_softmax(-1)
    _, ids = logits.topk(min(k, len(logits)))

    def describe(i: int) -> Facts:
        text = name_token(tokenizer, i) if i <= tokenizer.max_id else f"<{i}>"
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


MAX_SHOWN_STEPS = 48  # of a long output
MAX_NEW_TOKENS = 16  # of the continuation of a text


def explain_search(run: Run, ids: Sequence[int]) -> Facts | None:
    """The output of a run for the tokens of a text, without special tokens, and how it came about.

    A language model continues them by its sampling settings with seed 0, at most ``MAX_NEW_TOKENS`` tokens
    and what fits; an encoder-decoder translates them by beam search. None if there is no room.
    """
    if run.kind == "encoder-decoder":
        return _explain_translation(run, ids)
    return _explain_continuation(run, ids)


def _explain_translation(run: Run, ids: Sequence[int]) -> Facts:
    config, tokenizer = run.generation, run.tokenizer.target_tokenizer
    template = with_languages(run.tokenizer)
    eos_ids = eos_ids_for(config, tokenizer, template.eos_id)
    bad_ids = [tokenizer.token_to_id(token) for token in config.bad_words]
    strategy = beam_strategy(config, template.eos_id, bad_ids, extra_eos_ids=eos_ids[1:])
    opening = list(template.opening_ids) if template.opening_forced else []
    limit = min(run.config.max_len, max(max_output_len(len(ids), config), len(opening) + 1))
    start = [template.decoder_start_id]
    state = beam_state_for(strategy, BeamRequest(limit, opening, len(opening), start))
    steps = _watch_beams(strategy, tokenizer)
    engine = Engine(cast(Decoder, run.model), max_len=limit, cache=config.cache)
    hypotheses = engine.submit(start, state, source=template.encoder_input(ids)).result()
    outputs = []
    for one in hypotheses:
        # the length that divides the score: with the end token, unless it was cut before it
        n, log_prob = len(one.tokens), one.log_prob
        is_ended = normalize_score(log_prob, n + 1, config.length_penalty) == one.score
        described = _describe_hypothesis(tokenizer, one._replace(tokens=template.strip_opening(one.tokens)))
        outputs.append(described | {"length": n + 1 if is_ended else max(1, n)})
    names = ("beam_size", "length_penalty", "early_stopping", "min_new_tokens", "no_repeat_ngram_size")
    return {
        "method": "greedy" if config.beam_size == 1 else "beam",
        "settings": {name: getattr(config, name) for name in names},
        "prompt": None,
        "steps": steps[:MAX_SHOWN_STEPS],
        "outputs": outputs,
    }


def _explain_continuation(run: Run, ids: Sequence[int]) -> Facts | None:
    config, tokenizer = run.generation, run.tokenizer
    prompt = run.prompt_template.build_prompt(list(ids))
    limit = min(MAX_NEW_TOKENS, config.max_new_tokens, run.config.max_len - len(prompt))
    if limit < 1:
        return None
    eos_ids = eos_ids_for(config, tokenizer)
    strategy = SamplingStrategy(sampling_from_config(config, tokenizer.vocab_size), *eos_ids)
    state = SampledSequences(strategy, prompt, limit)
    steps = _watch_samples(strategy, tokenizer)
    engine = Engine(cast(Decoder, run.model), max_len=len(prompt) + limit, cache=config.cache)
    hypotheses = engine.submit(prompt, state).result()
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens")
    return {
        "method": "greedy" if config.temperature == 0 else "sampling",
        "settings": {name: getattr(config, name) for name in names} | {"seed": 0},
        "prompt": prompt,
        "steps": steps,
        "outputs": [_describe_hypothesis(tokenizer, one) for one in hypotheses],
    }


def _watch_steps(
    strategy: BeamSearchStrategy | SamplingStrategy, describe: Callable[[Any, Tensor], Callable[[], Facts]]
) -> Steps:
    """Write every step of one search, or of one sampled sequence, into the list that is returned.

    ``describe`` sees the state before the step, and its result describes the step after it.
    """
    steps: Steps = []
    advance = strategy.advance

    def advance_and_record(
        states: Sequence[DecodingState], logits: Tensor, shortlist_head: ShortlistHead | None = None
    ) -> None:
        (state,) = states
        finish = describe(state, logits)
        advance(states, logits, shortlist_head)
        steps.append(finish())

    strategy.advance = advance_and_record  # type: ignore[method-assign]
    return steps


def _watch_beams(strategy: BeamSearchStrategy, tokenizer: Tokenizer) -> Steps:
    def describe(state: BeamState, logits: Tensor) -> Callable[[], Facts]:
        rows, log_probs = [list(row) for row in state.rows], list(state.log_probs)
        log_p, k = logits.float().log_softmax(-1), max(SHOWN_TOKENS, strategy.num_candidates)

        def finish() -> Facts:
            kept = [(origin, row[-1]) for origin, row in zip(state.parent_rows, state.rows, strict=True)]
            beams = []
            for i, (row, log_prob) in enumerate(zip(rows, log_probs, strict=True)):
                kept_ids = {token for origin, token in kept if origin == i}
                candidates = _describe_candidates(
                    tokenizer, log_p[i], k, kept_ids, strategy.eos_ids, log_prob
                )
                beams.append(_describe_row(tokenizer, row, log_prob, candidates))
            return {"beams": beams, "chosen": [{"beam": beam, "id": token} for beam, token in kept]}

        return finish

    return _watch_steps(strategy, describe)


def _watch_samples(strategy: SamplingStrategy, tokenizer: Tokenizer) -> Steps:
    def describe(state: SampledSequences, logits: Tensor) -> Callable[[], Facts]:
        row, log_prob, eos_ids = list(state.rows[0]), state.outputs[0][1], strategy.eos_ids
        log_p = logits.float().log_softmax(-1)[0]
        histories = [[*state.prompt, *row]]
        drawn = strategy.sampling.apply(logits, histories, eos_ids, [row]).double().softmax(-1)[0]

        def finish() -> Facts:
            chosen = state.new_tokens[-1].id
            candidates = _describe_candidates(
                tokenizer, log_p, SHOWN_TOKENS, {chosen}, set(eos_ids), log_prob
            )
            for candidate in candidates:
                candidate["q"] = round_float(float(drawn[candidate["id"]]))
            beam = _describe_row(tokenizer, row, log_prob, candidates)
            return {"beams": [beam], "chosen": [{"beam": 0, "id": chosen}]}

        return finish

    return _watch_steps(strategy, describe)


def _describe_row(tokenizer: Tokenizer, row: list[int], log_prob: float, candidates: Steps) -> Facts:
    return {
        "tokens": row,
        "text": tokens_to_text(tokenizer, row),
        "log_prob": round_float(log_prob),
        "candidates": candidates,
    }


def _describe_candidates(
    tokenizer: Tokenizer, log_p: Tensor, k: int, kept_ids: set[int], eos_ids: set[int], log_prob: float
) -> Steps:
    """The k most likely extensions of a row, and those that were kept, by their log-probabilities (V,)."""
    ids = log_p.topk(min(k, len(log_p))).indices.tolist()
    ids += sorted(kept_ids - set(ids), key=lambda i: -float(log_p[i]))
    return [
        {
            "id": i,
            "text": name_token(tokenizer, i, END_MARK if i in eos_ids else "")
            if i <= tokenizer.max_id
            else f"<{i}>",
            "p": round_float(float(torch.exp(log_p[i]))),
            "log_prob": round_float(float(log_p[i])),
            "total": round_float(log_prob + float(log_p[i])),
            "kept": i in kept_ids,
            "ends": i in eos_ids,
        }
        for i in ids
    ]


def _describe_hypothesis(tokenizer: Tokenizer, hypothesis: Hypothesis) -> Facts:
    return {
        "ids": hypothesis.tokens,
        "text": tokens_to_text(tokenizer, hypothesis.tokens),
        "score": round_float(hypothesis.score),
        "log_prob": round_float(hypothesis.log_prob),
    }
