"""The mesh of processes of a training: its shape, and what a rank does by its place in it."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from polyhead.config.config_sections import ParallelConfig
from polyhead.core.errors import UserError, is_command_line


class MeshShape(NamedTuple):
    """Sizes of the dimensions of the mesh, outermost first: neighbours in it send the most."""

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1

    @property
    def partitions_model(self) -> bool:
        """Whether a process holds only a part of the model."""
        return self.pipeline * self.shard * self.tensor > 1

    @property
    def partitions_rows(self) -> bool:
        """Whether processes share rows: each of them does a part of the work on a row."""
        return self.pipeline * self.context * self.tensor > 1

    @property
    def n_ranks_per_stage(self) -> int:
        """Number of ranks with the same layers."""
        return self.replicate * self.shard * self.context * self.tensor

    def __str__(self) -> str:
        return " x ".join(f"{name} {size}" for name, size in self._asdict().items() if size > 1)


class RankPlace(NamedTuple):
    """A rank's place in the mesh, and what follows from it."""

    shape: MeshShape
    rank: int

    @property
    def coordinates(self) -> MeshShape:
        """Coordinate of the rank in each dimension."""
        return MeshShape(*map(int, np.unravel_index(self.rank, self.shape)))

    @property
    def data_size(self) -> int:
        """Number of shards of a batch."""
        return self.shape.replicate * self.shape.shard

    @property
    def data_rank(self) -> int:
        """Number of the rank's shard of a batch."""
        at = self.coordinates
        return at.replicate * self.shape.shard + at.shard

    @property
    def reduce_size(self) -> int:
        """Number of ranks over which the gradient of a weight is summed."""
        return self.data_size * self.shape.context

    @property
    def reduce_rank(self) -> int:
        """Number of the rank among those; also of its items in an evaluation, whose rows are not sharded."""
        return self.data_rank * self.shape.context + self.coordinates.context

    @property
    def seed_rank(self) -> int:
        """Number from which dropout is seeded.

        Ranks of one tensor group have the same, as they hold the same hidden states.
        """
        return self.coordinates.pipeline * self.reduce_size + self.reduce_rank

    @property
    def counts(self) -> bool:
        """Whether the losses and labels of the rank count; other ranks of a model have the same ones."""
        at = self.coordinates
        return at.tensor == 0 and at.pipeline == self.shape.pipeline - 1


def resolve_mesh_shape(parallel: ParallelConfig, world_size: int) -> MeshShape:
    """The shape of the mesh for a number of processes; a UserError if they do not fit."""
    sizes = {name: getattr(parallel, name) or 1 for name in MeshShape._fields}
    needed = prod(sizes.values())
    if parallel.replicate is None:
        sizes["replicate"] = max(1, world_size // needed)
    if prod(sizes.values()) != world_size:
        shape = MeshShape(**{name: getattr(parallel, name) or 1 for name in sizes})
        count = f"{needed}" if parallel.replicate else f"a multiple of {needed}"
        raise UserError(
            f"train.parallel ({shape}) needs {count} processes, but the number of processes is {world_size}; "
            f"start with {'' if is_command_line() else 'the shell command polyhead train RECIPE '}"
            f"--processes {needed}"
        )
    return MeshShape(**sizes)
