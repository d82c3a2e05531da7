import torch

from polyhead import ModelConfig, build

ENCODER_SIZES = {"kind": "encoder", "vocab_size": 13, "d_model": 8, "n_heads": 2, "n_layers": 2}
ENCODER_SIZES |= {"max_len": 12, "dropout": 0.0}
TOKENS = torch.tensor([[4, 7, 2, 9, 5], [3, 6, 8, 1, 1]])
POS = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]])


def randomize(module, std):
    """Draw every parameter from a normal distribution, so that each has an effect."""
    torch.manual_seed(0)
    for p in module.parameters():
        torch.nn.init.normal_(p, std=std)
    return module


def make_encoder(**changes):
    return randomize(build(ModelConfig(**{**ENCODER_SIZES, **changes}), seed=1), 0.3).eval()
