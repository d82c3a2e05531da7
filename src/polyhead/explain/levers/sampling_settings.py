"""Sampling settings as a lever: temperature, top-k and top-p change the distribution, not the model."""

from __future__ import annotations

import torch

from polyhead.explain.levers.interface import Field, Lever, LeverOutput, Setting
from polyhead.explain.levers.lever_input import LeverInput
from polyhead.generation.decoding.sampling import Sampling
from polyhead.models import CausalLM, Seq2Seq

_MAX_TEMPERATURE = 100.0


def _find_obstacle(lever_input: LeverInput) -> str:
    return "" if isinstance(lever_input.model, CausalLM | Seq2Seq) else "this model generates no text"


def _list_fields(lever_input: LeverInput) -> list[Field]:
    return [
        Field("temperature", "number", 1.0, 0, _MAX_TEMPERATURE),
        Field("top_k", "integer", 0, 0, lever_input.model.config.vocab_size),
        Field("top_p", "number", 1.0, 1e-6, 1),
    ]


def _list_cases(lever_input: LeverInput) -> list[Setting]:
    return [{"temperature": 0.5}, {"temperature": 1.5}, {"top_k": 5}, {"top_p": 0.9}]


def apply_sampling(lever_input: LeverInput, setting: Setting) -> LeverOutput:
    """The distribution that a token is sampled from; at temperature 0 all of it is on the most likely one."""
    logits, sampling = lever_input.plain_logits, Sampling(**setting)
    if sampling.temperature == 0:
        best = logits.argmax(-1, keepdim=True)
        return LeverOutput(torch.full_like(logits, -torch.inf).scatter(-1, best, 0.0))
    return LeverOutput(sampling.apply(logits, [[]] * len(logits)))


SAMPLING_LEVER = Lever("sampling", "sampling", _find_obstacle, _list_fields, _list_cases, apply_sampling)
