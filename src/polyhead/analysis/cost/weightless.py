"""Models whose tensors have a shape and no memory: what a run would do is done, and nothing is computed.

So operations and bytes are those of the code itself, of any part, also one of the user's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from polyhead.analysis.cost.work import Load, Unknown
from polyhead.config import ModelConfig
from polyhead.models import Classifier, Detector, Embedder
from polyhead.models.build import Model, model_class


@contextmanager
def weightless() -> Iterator[None]:
    """Tensors made within have no memory, on what they take for the CPU."""
    with FakeTensorMode(), _Answers():
        yield


class _Answers(TorchDispatchMode):
    """Asked for its value, a tensor without numbers answers 2, or yes: rows are whole, masks show something, and tokens have a spread."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return True if args[0].dtype == torch.bool else 2
        return func(*args, **(kwargs or {}))


def given(config: ModelConfig, load: Load) -> tuple[Tensor, ...]:
    """What a model of that kind reads: whole rows of token 0."""
    tokens = torch.zeros(load.rows, load.length, dtype=torch.int64)
    if config.kind != "encoder-decoder":
        return (tokens,)
    return torch.zeros(load.rows, load.source, dtype=torch.int64), tokens


def counted(config: ModelConfig, load: Load) -> int:
    """The operations of a forward pass as torch's counter sees them, the head for all tokens; ``Unknown`` where a part fails."""
    with weightless():
        try:
            model = model_class(config)(config).eval()
            return flops_of(lambda: model(*given(config, load)))
        except Exception as error:
            raise Unknown(
                f"a part that fails on tensors without numbers: {type(error).__name__}: {error}"
            ) from error


def flops_of(run: Callable[[], object]) -> int:
    """What torch's counter counts: matrix products and convolutions."""
    counter = FlopCounterMode(display=False)
    with ExitStack() as stack:
        # only the plain kernels are seen by the counter: not the fused attention of the CPU, nor oneDNN's LSTM
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        # torch warns about Intel's GPUs
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        stack.enter_context(counter)
        run()
    return int(counter.get_total_flops())


def features_of(model: Model, inputs: tuple[Tensor, ...]) -> Tensor:
    """What the loss is made of, head and labels left out."""
    if isinstance(model, Detector):
        model.generator.features(*inputs)
        return model(*inputs)
    if isinstance(model, Classifier | Embedder):
        return model(*inputs)
    return model.features(*inputs)


class Saved:
    """Bytes that autograd keeps for the backward pass, each storage once, those of the model's own tensors left out."""

    def __init__(self, model: nn.Module) -> None:
        own = [*model.parameters(), *model.buffers()]
        self.own = {x.untyped_storage()._cdata for x in own}
        self.held: dict[int, Tensor] = {}

    def __enter__(self) -> Saved:
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda x: x)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.hooks.__exit__(*error)

    def _pack(self, x: Tensor) -> Tensor:
        if x.untyped_storage()._cdata not in self.own:
            self.held[x.untyped_storage()._cdata] = x  # held, so that no other storage takes its place
        return x

    @property
    def nbytes(self) -> int:
        return sum(x.untyped_storage().nbytes() for x in self.held.values())
