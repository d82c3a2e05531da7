"""Small models, plain decoding and collectors of events for the tests of generation."""

from pathlib import Path

import torch
import yaml

from polyhead.config.model import ModelConfig
from polyhead.generation.decoding.sampling import RandomStreams, Sampling
from polyhead.models import build

GREEDY = Sampling(temperature=0.0)
REFUSALS = yaml.safe_load((Path(__file__).parent / "refused.yaml").read_text(encoding="utf-8"))


def perturb(model, noise, seed=None, head_scale=1.0):
    """Add noise to every parameter and scale the head, so that biases matter and logits are far from ties."""
    if seed is not None:
        torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(noise * torch.randn_like(p))
        if head_scale != 1:
            model.head.weight.mul_(head_scale)
    return model.eval()


def build_noisy(config, seed, noise, noise_seed, head_scale=1.0):
    return perturb(build(config, seed=seed), noise, noise_seed, head_scale)


def build_translator(**changes):
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 32, "max_len": 40, "lm_head_bias": True}
    model = build(ModelConfig(vocab_size=60, **(sizes | changes)), seed=3).eval()
    with torch.no_grad():
        model.head.bias.normal_()
        model.head.weight.mul_(3)
    return model


def ids_by_row(events, n_rows, first_row=0):
    rows = [[] for _ in range(n_rows)]
    for event in events:
        rows[event.row - first_row].append(event.id)
    return rows


@torch.no_grad()
def decode_plain(model, prompt, limit, sampling=GREEDY, seed=0, row=0, max_len=64, eos_id=2, prefix=()):
    """Plain decoding: the visible text is read again for every token, without a cache."""
    prefix = list(prefix) if list(prompt[: len(prefix)]) == list(prefix) else []
    y, start, streams = list(prompt), 0, RandomStreams(seed, 1, row)
    while len(y) < len(prompt) + limit and (len(y) == len(prompt) or y[-1] != eos_id):
        if len(y) - start > max_len:
            start = len(y) - max_len // 2
        head = prefix if start else []
        logits = sampling.apply(
            model(torch.tensor([[*head, *y[start + len(head) :]]]))[:, -1], [y], (0,), [y[len(prompt) :]]
        )
        y.append(int(logits.argmax()) if sampling.temperature == 0 else streams.sample(logits, [0])[0])
    return y[len(prompt) :]


def is_last_flags(events, row):
    return [event.is_last for event in events if event.row == row]


def stop_rows(steps, n_rows, n_tokens=2):
    """Drive a generator and stop every third row after some tokens; the token ids of each row."""
    rows, send = [[] for _ in range(n_rows)], None
    while True:
        try:
            token = steps.send(send) if send else next(steps)
        except StopIteration:
            return rows
        rows[token.row].append(token.id)
        send = {token.row} if token.row % 3 == 0 and len(rows[token.row]) == n_tokens else None
