"""Initial weights. They are drawn after ``torch.manual_seed(train.seed)``: the same seed gives the same model.

Whatever is chosen, matrices on the state of a recurrent layer are orthogonal (Saxe et al., 2014), so that what is kept
keeps its length, and the forget gate of an LSTM has bias 1, so that it keeps (Jozefowicz et al., 2015).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from polyhead.config import ModelConfig
from polyhead.nn.head import Head
from polyhead.nn.position.learned import Learned
from polyhead.nn.stack import Stack
from polyhead.ranges import Above0
from polyhead.registry import INIT


@INIT.register("xavier")
def xavier(model: nn.Module, config: ModelConfig, *, gain: Above0 = 1.0) -> None:
    """Uniform matrices whose bound keeps the variance of signals and gradients alike; biases 0.

    Embeddings are normal with variance 1/E, E being their width, so that with ``model.scale_embedding`` they have variance 1. The recipe of
    the original Transformer's implementations and the default.

    Equation: W ~ U(-a, a),  a = gain √(6 / (n_in + n_out))
    Paper: Glorot & Bengio, 2010
    When: with the original Transformer's choices: sinusoidal positions, scaled embeddings
    Options:
      gain: factor on the bound
    """
    _fill(model, lambda w: nn.init.xavier_uniform_(w, gain), config.embedding_width**-0.5)


@INIT.register("normal")
def normal(model: nn.Module, config: ModelConfig, *, std: Above0 = 0.02) -> None:
    """Normal matrices and embeddings of one small spread; biases 0.

    The projections that feed the residual stream (``o_proj``, ``down_proj``) are divided by √(2N) for a stack of N layers,
    so that its variance does not grow with depth.

    Equation: W ~ N(0, std²)
    Paper: Radford et al., 2019
    When: to build as GPT-2 and BERT do
    Recipe: model: {init: normal, scale_embedding: false}
    Options:
      std: standard deviation
    """
    _fill(model, lambda w: nn.init.normal_(w, std=std), std)
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        for name, weight in stack.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.data.div_((2 * len(stack.layers)) ** 0.5)


def _fill_recurrent(module: nn.RNNBase, matrix: Callable[[Tensor], object]) -> None:
    """Matrices on the input as any other, those on the state orthogonal, biases zero, but 1 for an LSTM's forget gate."""
    for name, weight in module.named_parameters():
        if weight.ndim == 1:
            nn.init.zeros_(weight)
        for gate in weight.split(module.hidden_size) if weight.ndim == 2 else ():
            nn.init.orthogonal_(gate) if name.startswith("weight_hh") else matrix(gate)
    if isinstance(module, nn.LSTM):
        nn.init.ones_(module.get_parameter("bias_ih_l0").chunk(4)[1])  # gates i, f, g, o


def _fill(model: nn.Module, matrix: Callable[[Tensor], object], embedding_std: float) -> None:
    done: set[int] = set()
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d)):
            matrix(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.RNNBase):
            _fill_recurrent(module, matrix)
        elif isinstance(module, (nn.Embedding, Learned, Head)) and id(module.weight) not in done:
            nn.init.normal_(module.weight, std=embedding_std)
            done.add(id(module.weight))  # the head may be an embedding
