import torch
from tests.lab import caches_helpers
from tests.lab.caches_helpers import TEXT

from polyhead import ModelConfig, build
from polyhead.explain.levers.lever_input import LeverInput

V = 40
SIZES = {"vocab_size": V, "d_model": 16, "n_heads": 4, "n_layers": 2, "d_ff": 24, "max_len": 32, "dropout": 0}


def make_model(kind="decoder", **changes):
    """A small model with weights large enough that every change shows."""
    model = build(ModelConfig(kind=kind, **{**SIZES, **changes}), seed=1).eval()
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5).add_(0.1 * torch.randn_like(p))
    return model


def make_input(model, length=9):
    """Random tokens as the model reads them, each with a true next token, class or token of its own."""
    torch.manual_seed(3)
    tokens = torch.randint(5, V, (length,)).tolist()
    words = [[1, 2], [3], [4, 5], [6, 7]]
    rows, labels, source = [*range(length)], [*tokens[1:], None], None
    if model.config.kind == "encoder-decoder":
        source = torch.randint(5, V, (length + 1,)).tolist()
    if model.config.kind == "encoder":
        labels = tokens
    if model.config.labels:
        rows = labels = [None]
    return LeverInput(model, tokens, rows, labels, words, 2, source)


def make_lever_input(kind="decoder", length=9, **changes):
    return make_input(make_model(kind, **changes), length)


def run_model(model, lever_input):
    """Logits of the model itself on the input, (R, V)."""
    sides = [lever_input.tokens] if lever_input.source is None else [lever_input.source, lever_input.tokens]
    with torch.no_grad():
        logits = model(*(torch.tensor([side]) for side in sides))
    return logits if lever_input.rows == [None] else logits[0]


def check_lever(lever, setting, lever_input, model):
    """The lever has the output of a changed model, which is not that of the model itself."""
    output, expected = lever.compute(lever_input, setting), run_model(model, lever_input)
    torch.testing.assert_close(output.logits, expected)
    assert not torch.allclose(expected, lever_input.plain_logits)
    return output


def make_run(kind="decoder", **changes):
    return caches_helpers.make_run(kind, tuple(TEXT.splitlines()), **{"n_layers": 2} | changes)
