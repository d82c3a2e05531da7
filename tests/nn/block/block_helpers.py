import torch
from tests.nn.model_helpers import randomize

from polyhead import Choice, ModelConfig
from polyhead.core.registry import BLOCK
from polyhead.nn.position.base import Position

C = 6
SIZES = {"vocab_size": 23, "d_model": C, "n_heads": 2, "n_layers": 2, "d_ff": 8, "max_len": 32, "dropout": 0}
HOLES = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [-1, 0, -1, 1, 2, -1, -1], [-1, -1, -1, 0, 1, 2, 3]])


def make_block(name, cross=False, **options):
    attention = {"name": "softmax", "bias": False}
    config = ModelConfig(**SIZES, norm="none", attention=attention, position="none")
    shape = config.attention_shape(causal=cross)
    block = BLOCK.build(Choice(name, **options), config, shape, Position(shape), cross)
    return randomize(block.double(), 0.6)


def draw(*shape):
    return torch.randn(*shape, C, dtype=torch.float64)
