"""Pipeline parallelism: stages of a model in several processes, which work on micro-batches in turn.

The schedules are those of ``torch.distributed.pipelining``: GPipe, 1F1B, interleaved and zero-bubble.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, TypeVar, cast

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
from polyhead.nn.device import at_least_fp32
from polyhead.train.distributed.pipeline_stages import (
    PartitionedModel,
    ReadHidden,
    Stage,
    StageOutput,
    pack,
    unpack,
)
from polyhead.train.loss_module import LossModule, LossTask, TrainingTask

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


def assign_stages(schedule: ScheduleName, size: int) -> list[int]:
    """The rank of each stage: in turn, or for ``zbv`` down to the last rank and back."""
    if schedule == "zbv":
        return [*range(size), *reversed(range(size))]
    return list(range(size)) * SCHEDULES[schedule].stages_per_rank


def count_micro_batches(minimum: int | None, n_batches: int, size: int, schedule: ScheduleName) -> int:
    """The number of micro-batches of an update of ``n_batches`` batches, at least ``minimum``.

    Every batch is cut into the same number. There are as many as stages at least, so that none is idle
    throughout; schedules that loop over stages need a multiple of the processes.
    """
    needed = max(minimum or MICRO_BATCHES_PER_RANK * size, size * SCHEDULES[schedule].stages_per_rank)
    step = math.lcm(n_batches, size) if SCHEDULES[schedule].is_looped else n_batches
    return math.ceil(needed / step) * step


def cut_micro_batches(task: TrainingTask, rows: Any, n: int) -> list[Any]:
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
    if config.encoder is not None:
        return "model.encoder gives the encoder another width than the decoder, and a pipeline has one"
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

    def __init__(
        self,
        model: nn.Module,
        task: LossTask,
        stage: Stage,
        context: Callable[[], AbstractContextManager[object]],
    ) -> None:
        super().__init__(model, task)
        self.stage, self.context = stage, context
        self.width = cast(ModelConfig, model.config).d_model
        self.dtype = next(model.parameters()).dtype  # of hidden states between stages
        self.batches: Sequence[Any] = ()
        self.packed_size, self.factor = 0, 1.0
        self.losses: list[Tensor] = []

    def forward(self, *inputs: Tensor, index: Tensor) -> Tensor:  # type: ignore[override]
        """The micro-batch of this index: packed hidden states (N,) -> those of the next stage, or (1,)."""
        read_hidden = unpack(inputs[0], self.width) if inputs else _read_nothing
        with self.stage.run(read_hidden), self.context():
            try:
                loss = self.task.loss(self.model, self.batches[int(index)])
            except StageOutput as output:
                return pack(output.hidden_states, self.packed_size, self.dtype)
        self.losses += [loss.total.detach(), loss.nll]
        return torch.stack([at_least_fp32(loss.total) * self.factor])  # fp16 would overflow


class PipelineModel:
    """The stages of a model that this process has, and the schedule in which they run.

    ``model`` is cut: afterwards it has only the parts of its own stages, under the same names. ``mesh`` is
    one-dimensional. Weights that several processes use, as a tied embedding, are copies with the same
    gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        task: LossTask,
        mesh: DeviceMesh,
        schedule: ScheduleName,
        n_micro_batches: int,
        context: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.model, self.task = model, task
        self.schedule_name, self.n_micro_batches = schedule, n_micro_batches
        self.group, self.rank, self.size = mesh.get_group(), mesh.get_local_rank(), mesh.size()
        self.ranks_of_stages = assign_stages(schedule, self.size)
        self.partition = PartitionedModel(model, self.ranks_of_stages, self.rank)
        self.device = next(model.parameters()).device
        self.dtype = next(model.parameters()).dtype
        self.width = cast(ModelConfig, model.config).d_model
        self.modules = [StageModule(model, task, stage, context) for stage in self.partition.stages]
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
        return self.partition.ranks_of_weights[name][0] == self.rank

    @cached_property
    def uncounted_weights(self) -> frozenset[nn.Parameter]:
        """The weights that count on another process."""
        return frozenset(p for name, p in self.model.named_parameters() if not self.owns(name))

    def forward_backward(self, batches: Sequence[Any], factor: float) -> list[Tensor]:
        """Gradients of the sum of all losses times ``factor``; returns total and NLL of each micro-batch."""
        assert len(batches) == self.n_micro_batches, f"{len(batches)} of {self.n_micro_batches} micro-batches"
        self._make_schedule(batches)
        for module in self.modules:
            module.batches, module.factor, module.losses = batches, factor, []
        numbers = torch.arange(len(batches))
        target = numbers if self.has_loss else None
        with _unwrap_errors():
            self._schedule.step(index=numbers, target=target, return_outputs=False)
        for parameter in self.model.parameters():
            # a backward pass of weights alone leaves transposed gradients, which fused optimizers misread
            if parameter.grad is not None and not parameter.grad.is_contiguous():
                parameter.grad = parameter.grad.contiguous()
        self.sum_shared_gradients()
        losses = torch.zeros(2 * len(batches), dtype=torch.float64, device=self.device)
        if self.has_loss:
            losses.copy_(torch.stack(self.modules[-1].losses))
        dist.broadcast(losses, group=self.group, group_src=self.ranks_of_stages[-1])
        return list(losses)

    def sum_shared_gradients(self) -> None:
        """Add the gradients of each weight that several ranks have, so that its copies stay the same."""
        for name, parameter in self.model.named_parameters():
            ranks = self.partition.ranks_of_weights[name]
            if len(ranks) == 1 or not parameter.requires_grad:
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
            for module in self.modules:
                stage = module.stage
                for number in numbers:
                    with stage.run(self._receiver(stage, local.pop((stage.index, number), None))):
                        result = module.run(partial(_run_to_end, work, items[number]))
                    if not isinstance(result, StageOutput):
                        results[number] = result
                    elif self.ranks_of_stages[stage.index + 1] == self.rank:
                        local[stage.index + 1, number] = result.hidden_states
                    else:
                        sends += self._send(stage, result.hidden_states)
            for send, _ in sends:
                send.wait()
        found = [[results[number] for number in range(len(items))] if self.has_loss else None]
        dist.broadcast_object_list(found, group=self.group, group_src=self.ranks_of_stages[-1])
        assert found[0] is not None
        return found[0]

    def _receiver(self, stage: Stage, local: list[Tensor] | None) -> ReadHidden:
        width, dtype = self.width, self.dtype

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
            tensor = x.to(self.dtype).contiguous()
            work = dist.isend(tensor, group=self.group, group_dst=self.ranks_of_stages[stage.index + 1])
            assert work is not None
            yield work, tensor

    def _make_schedule(self, batches: Sequence[Any]) -> None:
        """Make stages and schedule, whose buffers have one size, unless the present ones fit the batches."""
        losses = (partial(self.task.loss, self.model, batch) for batch in batches)
        n_tokens = [self.partition.count_hidden(compute_loss) for compute_loss in losses]
        largest = [
            max(sum(counts[: t + 1]) for counts in n_tokens) * self.width for t in range(len(n_tokens[0]))
        ]
        fits = self._capacities and all(
            size <= capacity <= 2 * size for size, capacity in zip(largest, self._capacities, strict=True)
        )
        if self._schedule is not None and fits:
            return
        self._capacities = largest

        def describe(index: int) -> tuple[Tensor, ...]:
            """The output of a stage, without memory."""
            if index == -1:
                return ()
            if index == self.n_stages - 1:
                return (torch.empty(1, device="meta", requires_grad=True),)
            size = largest[self.partition.last_trunks[index]]
            return (torch.empty(size, dtype=self.dtype, device="meta", requires_grad=True),)

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
        # they print the whole schedule to every error
        logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)
        schedule_class, stages_per_rank, _ = SCHEDULES[self.schedule_name]
        self._schedule = schedule_class(
            stages if stages_per_rank > 1 or schedule_class is ScheduleInterleavedZeroBubble else stages[0],
            self.n_micro_batches,
            loss_fn=lambda output, target: output.sum(),
            scale_grads=False,
        )


@contextmanager
def _unwrap_errors() -> Iterator[None]:
    """Raise an error of a stage as it is, not as the cause of torch's own."""
    try:
        yield
    except RuntimeError as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from None


def _run_to_end(work: Callable[[Any], T], item: Any) -> T | StageOutput:
    """The result of the last stage, or the output of another one: wrappers of modules expect no exception."""
    try:
        return work(item)
    except StageOutput as output:
        return output


def _skip_weight_pass() -> Callable[..., None]:
    """The backward pass of weights alone, where the other one computes their gradients as well: nothing."""
    return lambda: None


def _read_nothing(shape: torch.Size) -> Tensor:
    raise AssertionError("the first stage receives no hidden states")
