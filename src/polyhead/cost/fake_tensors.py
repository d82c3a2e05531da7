"""Run models on fake tensors, which have shapes but no memory, so that nothing is computed.

Operations and bytes are those of the code itself, for any part, including user-defined ones.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from polyhead.config.model import ModelConfig
from polyhead.cost.workload import BatchShape, UnknownFormulaError
from polyhead.models import Classifier, ReplacedTokenDetector, SentenceEncoder, TokenClassifier
from polyhead.models.build import Model, model_class
from polyhead.nn.init import SkipInit


@contextmanager
def fake_mode() -> Iterator[None]:
    """Context in which tensors have no memory; their device is the CPU. Torch warns about their addresses."""
    with FakeTensorMode(), _FakeScalarMode(), warnings.catch_warnings(action="ignore"):
        yield


def fake_model(config: ModelConfig) -> Model:
    """Build the model of a config in ``fake_mode``, without initializing it, which takes most of the time."""
    with SkipInit():
        return model_class(config)(config)


class _FakeScalarMode(TorchDispatchMode):
    """``.item()`` of a fake tensor returns 2 or True, so that data-dependent branches take the common path.

    The common path: rows without padding, masks with at least one visible token, tokens that differ. All
    elements of a mask are true.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.nonzero.default:
            return torch.zeros(args[0].numel(), args[0].dim(), dtype=torch.int64)
        if func is torch.ops.aten._local_scalar_dense.default:
            return True if args[0].dtype == torch.bool else 2
        return func(*args, **(kwargs or {}))


def fake_inputs(config: ModelConfig, batch_shape: BatchShape) -> tuple[Tensor, ...]:
    """The input tensors of a model of this kind: rows of token 0 without padding."""
    tokens = torch.zeros(batch_shape.rows, batch_shape.length, dtype=torch.int64)
    if config.kind != "encoder-decoder":
        return (tokens,)
    return torch.zeros(batch_shape.rows, batch_shape.source, dtype=torch.int64), tokens


def count_flops(config: ModelConfig, batch_shape: BatchShape) -> int:
    """Operations of a forward pass as counted by torch, with the head applied to all tokens.

    Raises ``UnknownFormulaError`` if a part fails on fake tensors.
    """
    with fake_mode():
        try:
            model = fake_model(config).eval()
            return measure_flops(lambda: model(*fake_inputs(config, batch_shape)))
        except Exception as error:
            raise UnknownFormulaError(
                f"a part that fails on tensors without numbers: {type(error).__name__}: {error}"
            ) from error


def measure_flops(fn: Callable[[], object]) -> int:
    """Operations of ``fn`` as counted by torch: matrix products and convolutions."""
    counter = FlopCounterMode(display=False)
    with ExitStack() as stack:
        # the counter sees only the plain kernels, not the fused attention of the CPU nor oneDNN's LSTM
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        # torch warns about Intel's GPUs
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        stack.enter_context(counter)
        fn()
    return int(counter.get_total_flops())


def compute_features(model: Model, inputs: tuple[Any, ...]) -> Tensor:
    """The input of the loss: the features of the model, without head and labels."""
    if isinstance(model, ReplacedTokenDetector):
        model.generator.features(*inputs)
        return model(*inputs)
    if isinstance(model, Classifier | TokenClassifier | SentenceEncoder):
        return model(*inputs)
    return model.features(*inputs)


class SavedActivations:
    """Count the bytes that autograd saves for the backward pass.

    Each storage counts once; tensors of the model itself (parameters and buffers) do not count.
    """

    def __init__(self, model: nn.Module) -> None:
        model_tensors = [*model.parameters(), *model.buffers()]
        self.model_storages = {x.untyped_storage()._cdata for x in model_tensors}
        self.tensors: dict[int, Tensor] = {}

    def __enter__(self) -> SavedActivations:
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda x: x)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.hooks.__exit__(*error)

    def _pack(self, x: Tensor) -> Tensor:
        if x.untyped_storage()._cdata not in self.model_storages:
            self.tensors[x.untyped_storage()._cdata] = x  # a reference, so that the address is not reused
        return x

    @property
    def nbytes(self) -> int:
        return sum(x.untyped_storage().nbytes() for x in self.tensors.values())


class LiveBytes(TorchDispatchMode):
    """Count the bytes that operations allocate, without the model's own: ``peak`` is the most at once."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.now = self.peak = 0
        storages = [x.untyped_storage() for x in (*model.parameters(), *model.buffers())]
        self.sizes = {storage._cdata: storage.nbytes() for storage in storages}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                self._add(x.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, nbytes = storage._cdata, storage.nbytes()
        if key not in self.sizes:
            weakref.finalize(storage, self._remove, key)
        self.now += nbytes - self.sizes.get(key, 0)
        self.sizes[key] = nbytes
        self.peak = max(self.peak, self.now)

    def _remove(self, key: int) -> None:
        self.now -= self.sizes.pop(key)
