"""Weight initialisation, seeded by ``torch.manual_seed(train.seed)``: the same seed gives the same model.

For every scheme, recurrent state matrices are orthogonal (Saxe et al., 2014), which preserves the norm of the
state, and the forget gate of an LSTM has bias 1, so that it remembers at first (Jozefowicz et al., 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from polyhead.config.model import ModelConfig
from polyhead.core.option_types import PositiveFloat
from polyhead.core.registry import INIT
from polyhead.nn.embedding import Head
from polyhead.nn.position.absolute import LearnedPosition
from polyhead.nn.residual import Residual
from polyhead.nn.stack import Stack

_INIT_FUNCTIONS = ("uniform_", "normal_", "kaiming_uniform_")


class SkipInit(TorchFunctionMode):
    """Context manager in which parameters are created but not initialised.

    For models that are loaded or on the meta device: random initialisation takes most of the time of loading,
    and on the meta device torch imports its compiler for it (a second).
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tensor = args[0] if args else kwargs.get("tensor")
        if getattr(func, "__name__", "") in _INIT_FUNCTIONS and isinstance(tensor, nn.Parameter):
            return tensor
        return func(*args, **kwargs)


@INIT.register("xavier")
def xavier_init(model: nn.Module, config: ModelConfig, *, gain: PositiveFloat = 1.0) -> None:
    """Uniform matrices whose bound preserves the variance of activations and gradients; biases 0.

    Embeddings are normal with variance 1/E for width E, so that with ``model.scale_embedding`` they have
    variance 1. The scheme of the original Transformer's implementations and the default.

    Equation: W ~ U(-a, a),  a = gain √(6 / (n_in + n_out))
    Paper: Glorot & Bengio, 2010
    When: with the original Transformer's choices: sinusoidal positions, scaled embeddings
    Options:
      gain: factor on the bound
    """
    _init_weights(model, lambda w: nn.init.xavier_uniform_(w, gain), config.embedding_width**-0.5)
    if config.encoder is not None:
        for part in model.get_submodule("encoder_embedding").modules():
            if isinstance(part, (nn.Embedding, LearnedPosition)):
                part.weight.data.mul_((config.d_model / config.encoder_spec.d_model) ** 0.5)


@INIT.register("normal")
def normal_init(model: nn.Module, config: ModelConfig, *, std: PositiveFloat = 0.02) -> None:
    """Normal matrices and embeddings with one small standard deviation; biases 0.

    The projections into the residual stream (``o_proj``, ``down_proj``) are divided by √(2N) in a stack of N
    layers, so that its variance does not grow with depth.

    Equation: W ~ N(0, std²)
    Paper: Radford et al., 2019
    When: models like GPT-2 and BERT
    Recipe: model: {init: normal, scale_embedding: false}
    Options:
      std: standard deviation
    """
    _init_weights(model, lambda w: nn.init.normal_(w, std=std), std)
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        for name, weight in stack.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.data.div_((2 * len(stack.layers)) ** 0.5)


_VALUE_MAPS = ("v_proj", "o_proj", "up_proj", "gate_proj", "down_proj", "conv")


def scale_branches(model: nn.Module) -> None:
    """Multiply the weights that carry values by the factor of their residual: DeepNorm's β."""
    gains = {
        id(linear.weight): (linear.weight, part.init_gain)
        for layer in model.modules()
        for part in layer.children()
        if isinstance(part, Residual) and part.init_gain != 1
        for name, linear in layer.named_modules(remove_duplicate=False)
        if name.endswith(_VALUE_MAPS) and isinstance(linear, nn.Linear | nn.Conv1d)
    }
    for weight, gain in gains.values():
        weight.data.mul_(gain)


def _init_recurrent(module: nn.RNNBase, init_matrix: Callable[[Tensor], object]) -> None:
    """Initialise an RNN: input matrices as usual, state matrices orthogonal, biases 0, forget gates 1."""
    for name, weight in module.named_parameters():
        if weight.ndim == 1:
            nn.init.zeros_(weight)
        for gate in weight.split(module.hidden_size) if weight.ndim == 2 else ():
            nn.init.orthogonal_(gate) if name.startswith("weight_hh") else init_matrix(gate)
    if isinstance(module, nn.LSTM):
        nn.init.ones_(module.get_parameter("bias_ih_l0").chunk(4)[1])  # gates i, f, g, o


def _init_weights(model: nn.Module, init_matrix: Callable[[Tensor], object], embedding_std: float) -> None:
    initialized: set[int] = set()
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d)):
            init_matrix(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.RNNBase):
            _init_recurrent(module, init_matrix)
        elif (
            isinstance(module, (nn.Embedding, LearnedPosition, Head)) and id(module.weight) not in initialized
        ):
            nn.init.normal_(module.weight, std=embedding_std)
            initialized.add(id(module.weight))  # the LM head may be tied to an embedding
