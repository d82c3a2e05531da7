"""Pipeline parallelism: the layers of a model are split over processes, which work on micro-batches in turn.

The schedules are those of ``torch.distributed.pipelining``: GPipe, 1F1B, interleaved and zero-bubble.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor import DTensor

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.train.distributed.pipeline_stages import (
    CutModel,
    ReadHidden,
    Stage,
    StageOutput,
    pack,
    unpack,
)
from polyhead.train.loss_module import LossModule, LossTask

T = TypeVar("T")
ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"]
MICRO_BATCHES_PER_RANK = 4  # the bubble is then a fifth of a step: Huang et al., 2019, sec. 3.2


class PipelineSchedule(NamedTuple):
    """A schedule of torch and the number of stages that it gives to each process."""

    schedule_class: type[Any]
    stages_per_rank: int
    is_looped: bool = False  # whether micro-batches go in groups of as many as there are processes


SCHEDULES: dict[ScheduleName, PipelineSchedule] = {
    "gpipe": PipelineSchedule(ScheduleGPipe, 1),
    "1f1b": PipelineSchedule(Schedule1F1B, 1),
    "interleaved": PipelineSchedule(ScheduleInterleaved1F1B, 2, is_looped=True),
    "zero_bubble": PipelineSchedule(ScheduleInterleavedZeroBubble, 1, is_looped=True),
    "zbv": PipelineSchedule(ScheduleZBVZeroBubble, 2),
}


class MicroBatchTask(LossTask, Protocol):
    """What a pipeline needs of a task to cut a batch."""

    def shard(self, rows: Any, n: int) -> list[Any]: ...
    def collate(self, rows: Any) -> Any: ...
    def dummy_batch(self) -> Any: ...


def assign_stages(schedule: ScheduleName, size: int) -> list[int]:
    """The rank of each stage: in turn, or for ``zbv`` down to the last rank and back."""
    if schedule == "zbv":
        return [*range(size), *reversed(range(size))]
    return list(range(size)) * SCHEDULES[schedule].stages_per_rank


def count_micro_batches(wanted: int | None, n_batches: int, size: int, schedule: ScheduleName) -> int:
    """The number of micro-batches of an update of ``n_batches`` batches, at least ``wanted``.

    Every batch is cut into the same number. There are as many as stages at least, so that none is idle
    throughout; schedules that loop over stages need a multiple of the processes.
    """
    minimum = max(wanted or MICRO_BATCHES_PER_RANK * size, size * SCHEDULES[schedule].stages_per_rank)
    step = math.lcm(n_batches, size) if SCHEDULES[schedule].is_looped else n_batches
    return math.ceil(minimum / step) * step


def split_batch(task: MicroBatchTask, rows: Any, n: int) -> list[Any]:
    """The rows of a batch as ``n`` micro-batches; where rows are fewer, the last ones have no tokens."""
    parts = task.shard(rows, n)
    return [task.collate(part) for part in parts] + [task.dummy_batch() for _ in range(n - len(parts))]


def find_pipeline_obstacle(
    config: ModelConfig, task: str, size: int, schedule: ScheduleName = "1f1b"
) -> str | None:
    """Why a model cannot be trained in a pipeline of ``size`` processes; None if it can."""
    n_layers = config.n_layers + (config.decoder_layers if config.kind == "encoder-decoder" else 0)
    n_stages = size * SCHEDULES[schedule].stages_per_rank
    if n_layers < n_stages:
        return (
            f"a pipeline of {size} processes with schedule {schedule!r} has {n_stages} stages, but the model "
            f"has {n_layers} layers"
        )
    if config.generator_layers:
        return f"task {task!r} trains two models, a generator and a detector; a pipeline has one"
    if config.norm.name == "batchnorm":
        return "norm 'batchnorm' needs the statistics of the whole batch, a pipeline has one micro-batch"
    if config.feed_forward.name == "moe" and config.feed_forward.options.get("balance", True):
        return (
            "feed_forward 'moe' balances the load of the whole batch, a pipeline has one micro-batch: set "
            "balance: false"
        )
    return None


class StageModule(LossModule):
    """A stage as torch's schedules call it: hidden states in, hidden states or the loss out."""

    def __init__(self, model: nn.Module, task: LossTask, stage: Stage) -> None:
        super().__init__(model, task)
        self.stage, self.config = stage, model.config
        self.context: Callable[[], AbstractContextManager[object]] = nullcontext
        self.batches: Sequence[Any] = ()
        self.packed_size, self.factor = 0, 1.0
        self.losses: list[Tensor] = []

    def forward(self, *packed: Tensor, index: Tensor) -> Tensor:
        """The micro-batch of this index: packed hidden states (N,) -> those of the next stage, or (1,)."""
        read_hidden = unpack(packed[0], self.config.d_model) if packed else _read_nothing
        with self.stage.run(read_hidden), self.context():
            try:
                loss = self.task.loss(self.model, self.batches[int(index)])
            except StageOutput as output:
                return pack(output.hidden_states, self.packed_size, _model_dtype(self.model))
        self.losses += [loss.total.detach(), loss.nll.detach()]
        return (loss.total.float() * self.factor).view(1)


class PipelineModel:
    """The stages of a model that this process has, and the schedule in which they run.

    ``model`` is cut: afterwards it has only the parts of its own stages, under the same names. ``mesh`` is
    one-dimensional. Weights that several processes use, as a tied embedding, are copies with the same
    gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        mesh: DeviceMesh,
        schedule: ScheduleName,
        n_micro_batches: int,
        context: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.model, self.schedule_name, self.n_micro_batches = model, schedule, n_micro_batches
        self.group, self.rank, self.size = mesh.get_group(), mesh.get_local_rank(), mesh.size()
        self.ranks_of_stages = assign_stages(schedule, self.size)
        self.cut = CutModel(model, self.ranks_of_stages, self.rank)
        self.context, self.device = context, next(model.parameters()).device
        self.modules: list[StageModule] = []
        self._schedule: Any = None
        self._capacities: list[int] = []

    @property
    def n_stages(self) -> int:
        """Number of stages of all processes."""
        return len(self.ranks_of_stages)

    @property
    def has_loss(self) -> bool:
        """Whether this process has the last stage, which computes the losses."""
        return self.ranks_of_stages[-1] == self.rank

    def owns(self, name: str) -> bool:
        """Whether this process is the first of those that have the weight: it counts and saves it."""
        return self.cut.ranks_of_weights[name][0] == self.rank

    def bind_task(self, task: LossTask) -> list[StageModule]:
        """The modules of the stages, which compute the loss of a task."""
        if not self.modules or self.modules[0].task is not task:
            self.modules = [StageModule(self.model, task, stage) for stage in self.cut.stages]
            self._schedule = None
        return self.modules

    def forward_backward(self, task: LossTask, batches: Sequence[Any], factor: float) -> list[Tensor]:
        """Gradients of the sum of all losses times ``factor``; returns total and NLL of each micro-batch.

        The returned list is empty on ranks without the last stage. Random numbers differ between ranks.
        """
        assert len(batches) == self.n_micro_batches, f"{len(batches)} of {self.n_micro_batches} micro-batches"
        modules = self.bind_task(task)
        self._make_schedule(task, batches)
        for module in modules:
            module.batches, module.factor, module.losses, module.context = batches, factor, [], self.context
        if self.rank:
            # as ranks share their batches, they have drawn the same numbers so far
            key = [torch.initial_seed(), self.rank]
            torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]))
        numbers = torch.arange(len(batches))
        target = numbers if self.has_loss else None
        with _unwrap_errors():
            self._schedule.step(index=numbers, target=target, return_outputs=False)
        self.sum_shared_gradients()
        return modules[-1].losses if self.has_loss else []

    def sum_shared_gradients(self) -> None:
        """Add the gradients of each weight that several ranks have, so that its copies stay the same."""
        for parameter, ranks in self.cut.shared.values():
            if not parameter.requires_grad or self.rank not in ranks:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad = parameter.grad.contiguous()
            grad = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
            if self.rank == ranks[0]:
                received = torch.empty_like(grad)
                for rank in ranks[1:]:
                    dist.recv(received, group=self.group, group_src=rank)
                    grad += received
                for rank in ranks[1:]:
                    dist.send(grad, group=self.group, group_dst=rank)
            else:
                dist.send(grad, group=self.group, group_dst=ranks[0])
                dist.recv(grad, group=self.group, group_src=ranks[0])

    def map(self, work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        """Results of ``work``, which runs the model once per item, forwards only; the same on all ranks.

        Several items are on their way at once, each in another stage.
        """
        results: dict[int, T] = {}
        local: dict[tuple[int, int], list[Tensor]] = {}  # between two stages of this rank
        for first in range(0, len(items), self.size):
            numbers = range(first, min(first + self.size, len(items)))
            sends: list[tuple[dist.Work, Tensor]] = []
            for stage in self.cut.stages:
                for number in numbers:
                    with stage.run(self._receiver(stage, local.pop((stage.index, number), None))):
                        try:
                            results[number] = work(items[number])
                        except StageOutput as output:
                            if self.ranks_of_stages[stage.index + 1] == self.rank:
                                local[stage.index + 1, number] = output.hidden_states
                            else:
                                sends += self._send(stage, output.hidden_states)
            for send, _ in sends:
                send.wait()
        found = [[results[number] for number in range(len(items))] if self.has_loss else None]
        dist.broadcast_object_list(found, group=self.group, group_src=self.ranks_of_stages[-1])
        assert found[0] is not None
        return found[0]

    def _receiver(self, stage: Stage, local: list[Tensor] | None) -> ReadHidden:
        width, dtype = self.model.config.d_model, _model_dtype(self.model)

        def read_hidden(shape: torch.Size) -> Tensor:
            if local is not None:
                return local.pop(0)
            hidden = torch.empty(*shape, width, dtype=dtype, device=self.device)
            dist.recv(hidden, group=self.group, group_src=self.ranks_of_stages[stage.index - 1])
            return hidden

        return read_hidden

    def _send(self, stage: Stage, hidden_states: list[Tensor]) -> Iterator[tuple[dist.Work, Tensor]]:
        """Start to send; the tensors must live until they are sent."""
        for x in hidden_states:
            tensor = x.to(_model_dtype(self.model)).contiguous()
            work = dist.isend(tensor, group=self.group, group_dst=self.ranks_of_stages[stage.index + 1])
            assert work is not None
            yield work, tensor

    def _make_schedule(self, task: LossTask, batches: Sequence[Any]) -> None:
        """Make stages and schedule, whose buffers have one size, unless the present ones fit the batches."""
        n_tokens = [self.cut.count_hidden(lambda b=batch: task.loss(self.model, b)) for batch in batches]
        width = self.model.config.d_model
        largest = [max(sum(counts[: t + 1]) for counts in n_tokens) * width for t in range(len(n_tokens[0]))]
        fits = self._capacities and all(
            size <= capacity <= 2 * size for size, capacity in zip(largest, self._capacities, strict=True)
        )
        if self._schedule is not None and fits:
            return
        self._capacities = largest
        dtype = _model_dtype(self.model)

        def describe(index: int) -> tuple[Tensor, ...]:
            """The output of a stage, without memory."""
            if index == -1:
                return ()
            if index == self.n_stages - 1:
                return (torch.empty(1, device="meta", requires_grad=True),)
            size = largest[self.cut.last_trunks[index]]
            return (torch.empty(size, dtype=dtype, device="meta", requires_grad=True),)

        stages = []
        for module in self.modules:
            index = module.stage.index
            if index < self.n_stages - 1:
                module.packed_size = largest[module.stage.last_trunk]
            inputs, outputs = describe(index - 1), describe(index)
            build_weight_pass = None if module.stage.splits_backward else _skip_weight_pass
            stages.append(
                PipelineStage(
                    module,
                    index,
                    self.n_stages,
                    self.device,
                    inputs,
                    outputs,
                    group=self.group,
                    dw_builder=build_weight_pass,
                )
            )
        schedule_class, stages_per_rank, _ = SCHEDULES[self.schedule_name]
        self._schedule = schedule_class(
            stages if stages_per_rank > 1 or schedule_class is ScheduleInterleavedZeroBubble else stages[0],
            self.n_micro_batches,
            loss_fn=lambda output, target: output.sum(),
            scale_grads=False,
        )


@contextmanager
def _unwrap_errors() -> Iterator[None]:
    """Raise a UserError of a stage as it is, not as the cause of torch's own error."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise


def _skip_weight_pass() -> Callable[..., None]:
    """The backward pass of weights alone, where the other one computes their gradients as well: nothing."""
    return lambda: None


def _model_dtype(model: nn.Module) -> torch.dtype:
    """The dtype of hidden states between stages: that of the weights."""
    return next(model.parameters()).dtype


def _read_nothing(shape: torch.Size) -> Tensor:
    raise AssertionError("the first stage receives no hidden states")
