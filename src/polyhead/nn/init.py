"""Initial weights by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from polyhead.config import ModelConfig
from polyhead.nn.head import Head
from polyhead.nn.position.learned import Learned
from polyhead.registry import INIT


@INIT.register("xavier")
def xavier(model: nn.Module, config: ModelConfig, *, gain: float = 1.0) -> None:
    """Xavier-uniform matrices, zero biases, embeddings from N(0, 1/d_model): the recipe of the original
    Transformer's implementations (Glorot & Bengio, 2010)."""
    _fill(model, lambda w: nn.init.xavier_uniform_(w, gain), config.d_model**-0.5)


@INIT.register("normal")
def normal(model: nn.Module, config: ModelConfig, *, std: float = 0.02) -> None:
    """Every matrix and embedding from N(0, std^2), zero biases, as in GPT-2 and BERT; the two projections that
    feed the residual stream are divided by sqrt(2 n_layers) (Radford et al., 2019)."""
    _fill(model, lambda w: nn.init.normal_(w, std=std), std)
    for name, weight in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.data.div_((2 * config.n_layers) ** 0.5)


def _fill_recurrent(module: nn.RNNBase, matrix: Callable[[Tensor], object]) -> None:
    """Matrices on the input as any other; those on the state orthogonal, so that what is kept keeps its length
    (Saxe et al., 2014); biases zero, but 1 for an LSTM's forget gate, so that it keeps (Jozefowicz et al., 2015)."""
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
        if isinstance(module, nn.Linear):
            matrix(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.RNNBase):
            _fill_recurrent(module, matrix)
        elif isinstance(module, (nn.Embedding, Learned, Head)) and id(module.weight) not in done:
            nn.init.normal_(module.weight, std=embedding_std)
            done.add(id(module.weight))  # the head may be an embedding
