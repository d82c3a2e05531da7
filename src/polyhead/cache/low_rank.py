"""Low-rank cache: keys and values projected to a few directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from polyhead.cache.contiguous import StaticCache, StaticLayer
from polyhead.cache.factory import make_cache
from polyhead.cache.row_cache import check_tensor
from polyhead.core.atomic_io import replace_file
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.option_types import OptionFile, PositiveInt
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheMemory, CacheShape
from polyhead.nn.kv import KV, WeightsHook
from polyhead.nn.state import check_weight

_FIT_BATCH_SIZE = 8  # rows per forward pass in fit_low_rank


class ProjectionBasis(NamedTuple):
    """Orthonormal directions of one layer, strongest first: of keys (K, D, r) and of values (K, Dv, r)."""

    k: Tensor
    v: Tensor


@CACHE.register("low_rank")
class LowRankCache:
    """Project keys and values to their ``rank`` strongest directions, fitted on a text.

    Each head of each layer has its own directions for keys and for values: those with the smallest
    reconstruction error on the text (``polyhead.cache.low_rank.fit_low_rank`` writes them to a file). Without
    a file they are fitted on the first step, all its rows together, so outputs depend on the batch; a first
    step with fewer tokens than directions, such as the BOS token of a translation, is refused. A rank equal
    to the head dimension is lossless.

    Equation: stored: k P and v R;  read: k P Pᵀ and v R Rᵀ
              P: first eigenvectors of Σ k kᵀ, R: of Σ v vᵀ
    Paper: Saxena et al., 2024 (Eigen Attention), sec. 3.2
    When: a projection was fitted on similar text, and keys and values are of low rank
    Recipe: generation: {cache: {name: low_rank, rank: 32}}
    Options:
      rank: directions stored per head, of keys and of values
      projection: file of directions that fit_low_rank wrote for this model, of at least this rank
      chunk: slots by which storage grows, or an eighth of it, whichever is more
    """

    name = "low_rank"
    lossless, rewinds, block_size = False, True, 1

    def __init__(
        self,
        shape: CacheShape,
        n_rows: int,
        max_len: int,
        *,
        rank: PositiveInt = 32,
        projection: OptionFile | None = None,
        chunk: PositiveInt = 8,
    ) -> None:
        if any(shape.states):
            raise UserError(
                "cache 'low_rank' stores keys and values, but this model has a recurrent state: "
                "use cache 'state'"
            )
        ranks = min(rank, shape.head_dim), min(rank, shape.v_dim)
        self.head_dims = shape.head_dim, shape.v_dim
        projected_shape = shape._replace(head_dim=ranks[0], v_dim=ranks[1])
        self.base_cache = StaticCache(projected_shape, n_rows, max_len, chunk=chunk)
        bases: Sequence[ProjectionBasis | None] = [None] * shape.n_layers
        if projection is not None:
            bases = load_projection(projection, shape, ranks)
        elif ranks == (shape.head_dim, shape.v_dim):
            k, v = (
                torch.eye(r, dtype=shape.dtype, device=shape.device).expand(shape.n_kv_heads, r, r)
                for r in ranks
            )
            bases = [ProjectionBasis(k, v)] * shape.n_layers
        self.layers = [
            LowRankLayer(inner, b, ranks) for inner, b in zip(self.base_cache.layers, bases, strict=True)
        ]
        self.prepare_step = self.base_cache.prepare_step
        self.free_tokens = self.base_cache.free_tokens
        self.append_rows = self.base_cache.append_rows
        self.fork = self.base_cache.fork
        self.release = self.base_cache.release
        self.select = self.base_cache.select

    @property
    def nbytes(self) -> int:
        return self.base_cache.nbytes + self._basis_bytes()

    @property
    def num_rows(self) -> int:
        return self.base_cache.num_rows

    def memory_usage(self) -> CacheMemory:
        """Memory of the base cache and of the directions, which count as used."""
        return CacheMemory(*(x + self._basis_bytes() for x in self.base_cache.memory_usage()[:3]))

    def export_rows(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """The rows of the base cache, and the directions that they are projected to."""
        bases = {f"layers.{i}.basis": layer.basis for i, layer in enumerate(self.layers) if layer.basis}
        return self.base_cache.export_rows(rows) | {
            f"{name}_{side}": x for name, basis in bases.items() for side, x in basis._asdict().items()
        }

    def import_rows(self, tensors: Mapping[str, Tensor]) -> None:
        names = [[f"layers.{i}.basis_{side}" for side in "kv"] for i in range(len(self.layers))]
        surplus = {name for pair in names for name in pair} & tensors.keys()
        bases = [
            self._read_basis(tensors, pair, layer) for pair, layer in zip(names, self.layers, strict=True)
        ]
        self.base_cache.import_rows({name: x for name, x in tensors.items() if name not in surplus})
        for layer, basis in zip(self.layers, bases, strict=True):
            layer.basis = basis

    def _read_basis(
        self, tensors: Mapping[str, Tensor], names: list[str], layer: LowRankLayer
    ) -> ProjectionBasis | None:
        """The directions of imported rows; UserError if the layer already has others."""
        if not any(name in tensors for name in names):
            return layer.basis  # no step has fitted any
        pair = []
        for name, size, x in zip(
            names, self.head_dims, (layer.base_layer.k, layer.base_layer.v), strict=True
        ):
            expected = x.new_empty(0, size, x.size(3))
            imported = tensors.get(name, x.new_empty(0))
            check_tensor(self.name, name, imported, expected, x.size(1))
            pair.append(imported.to(x.device))
        basis = ProjectionBasis(*pair)
        if layer.basis is not None and not all(map(torch.equal, basis, layer.basis)):
            raise UserError(
                "cache 'low_rank': the imported rows are projected to other directions than those of this "
                "cache: use the same projection file in both processes, or import into an empty cache"
            )
        return basis

    def _basis_bytes(self) -> int:
        return sum(x.untyped_storage().nbytes() for layer in self.layers for x in layer.basis or ())


class LowRankLayer:
    """Layer of a static cache that projects keys and values before storing and back after reading."""

    state: tuple[Tensor, ...] = ()

    def __init__(
        self, base_layer: StaticLayer, basis: ProjectionBasis | None, ranks: tuple[int, int]
    ) -> None:
        self.base_layer, self.basis, self.ranks = base_layer, basis, ranks
        self.weights_hook: WeightsHook | None = None
        self.select = base_layer.select

    @property
    def nbytes(self) -> int:
        return self.base_layer.nbytes + sum(x.untyped_storage().nbytes() for x in self.basis or ())

    def update(self, kv: KV) -> KV:
        """Store (B, K, T, D) and return (B, K, S, D), reconstructed."""
        if self.basis is None:
            assert self.base_layer.step is not None, "prepare_step() must be called before update()"
            self.basis = fit_projection(kv, self.base_layer.step.padding, self.ranks)
        P, R = self.basis
        stored = self.base_layer.update(kv.replace(k=kv.k.to(P.dtype) @ P, v=kv.v.to(R.dtype) @ R))
        return stored.replace(k=stored.k @ P.mT, v=stored.v @ R.mT)


def fit_projection(kv: KV, padding: Tensor | None, ranks: tuple[int, int]) -> ProjectionBasis:
    """Fit the directions on the keys and values of one step; ``padding`` (B, 1, T, 1) is True at padding."""
    tokens = kv.k.size(0) * kv.k.size(2) - (0 if padding is None else int(padding.sum()))
    if tokens < max(ranks):
        raise UserError(
            f"cache 'low_rank' fits {max(ranks)} directions in the first step, which has only {tokens} "
            "tokens: set projection to a file written by polyhead.cache.low_rank.fit_low_rank, or use a "
            "longer prompt"
        )
    parts = (x if padding is None else x.masked_fill(padding, 0) for x in (kv.k, kv.v))
    return ProjectionBasis(
        *(top_eigenvectors(sum_outer_products(x), r).to(x) for x, r in zip(parts, ranks, strict=True))
    )


def sum_outer_products(x: Tensor) -> Tensor:
    """Sum of x xᵀ over rows and tokens, (B, K, T, D) -> (K, D, D) fp64."""
    x = x.detach().double()
    return (x.mT @ x).sum(0)


def top_eigenvectors(moments: Tensor, rank: int) -> Tensor:
    """Eigenvectors of the largest eigenvalues, largest first: (K, D, D) -> (K, D, rank)."""
    return torch.linalg.eigh(moments)[1].flip(-1)[..., :rank]


@torch.no_grad()
def fit_low_rank(
    model: Any,
    tokens: Tensor,
    rank: int,
    path: str | Path,
    *,
    pos: Tensor | None = None,
    source: tuple[Tensor, Tensor | None] | None = None,
) -> list[ProjectionBasis]:
    """Fit the ``rank`` strongest directions of keys and values on a text; save (safetensors) and return them.

    ``tokens`` (N, T) are decoder inputs at positions ``pos`` (N, T), -1 at padding; None: rows without
    padding. An encoder-decoder also needs ``source``: tokens (N, S) and their positions or None. The file
    also serves smaller ranks.
    """
    shape: CacheShape = model.cache_shape
    if not shape.kv_layers:
        raise UserError("this model has a recurrent state and no keys and values to project")
    if pos is None:
        pos = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
    if rank < 1 or int((pos >= 0).sum()) < rank:
        raise UserError(
            f"{rank} directions in {int((pos >= 0).sum())} tokens: expected 1 or more, and at least "
            "as many tokens"
        )
    sums: list[list[Tensor]] = []
    for i in range(0, len(tokens), _FIT_BATCH_SIZE):
        batch, batch_pos = tokens[i : i + _FIT_BATCH_SIZE], pos[i : i + _FIT_BATCH_SIZE]
        memory = (
            None
            if source is None
            else model.encode(*(x if x is None else x[i : i + _FIT_BATCH_SIZE] for x in source))
        )
        cache = make_cache(Choice("static"), shape, len(batch), tokens.size(1))
        cache.prepare_step(range(len(batch)), batch_pos)
        model.decode(batch, batch_pos, cache, memory)
        layers: list[Any] = [cache.layers[i] for i in shape.kv_layers]
        # empty slots are 0
        batch_sums = [[sum_outer_products(x) for x in (layer.k, layer.v)] for layer in layers]
        sums = (
            [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(sums, batch_sums, strict=True)]
            if sums
            else batch_sums
        )
    bases = [
        ProjectionBasis(*(top_eigenvectors(x, min(rank, x.size(-1))).float() for x in layer))
        for layer in sums
    ]
    tensors = {
        f"layers.{i}.{name}": x
        for i, b in zip(shape.kv_layers, bases, strict=True)
        for name, x in b._asdict().items()
    }
    replace_file(Path(path), save({name: x.contiguous().cpu() for name, x in tensors.items()}))
    return bases


def load_projection(path: str | Path, shape: CacheShape, ranks: tuple[int, int]) -> list[ProjectionBasis]:
    """Load the first ``ranks`` directions of each layer; UserError if the file does not fit the model."""
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cache 'low_rank': projection {str(path)!r} cannot be read: {error}") from error
    sizes = (shape.head_dim, shape.v_dim)
    layers = []
    for i in shape.layer_numbers:
        pair = []
        for name, size, rank in zip("kv", sizes, ranks, strict=True):
            x = tensors.pop(f"layers.{i}.{name}", None)
            if x is None or x.dim() != 3 or x.shape[:2] != (shape.n_kv_heads, size) or x.size(2) < rank:
                description = "nothing" if x is None else f"shape {tuple(x.shape)}"
                raise UserError(
                    f"cache 'low_rank': projection {str(path)!r} has {description} for layers.{i}.{name}, "
                    f"expected {(shape.n_kv_heads, size, rank)} or more in the last dimension: fit it on "
                    "this model"
                )
            check_weight(f"layers.{i}.{name}", x, path)
            pair.append(x[..., :rank].to(shape.device, shape.dtype).contiguous())
        layers.append(ProjectionBasis(*pair))
    if tensors:
        raise UserError(
            f"cache 'low_rank': projection {str(path)!r} belongs to another model: it also has {min(tensors)}"
        )
    return layers
