"""World 2 equals world 1: the same losses, weights and files on any number of processes, and a resume on another."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.train.conftest import Notes, small_recipe, write_corpus
from tests.train.several import together
from torch import Tensor, nn

from polyhead.checkpoint import checkpoint
from polyhead.config.model import ModelConfig
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.choice import Choice
from polyhead.cost.communication import ParallelLayout, estimate_traffic, ring_all_reduce_bytes
from polyhead.cost.workload import BatchShape
from polyhead.data.batching.length_bucketing import shard_rows
from polyhead.data.batching.packing import PackedRows, Segments
from polyhead.estimate.benchmark import RandomTokenTask
from polyhead.models import build
from polyhead.nn.feed_forward.moe import MixtureOfExperts
from polyhead.run.run import Run
from polyhead.train import loop
from polyhead.train import run_training as run_training_module
from polyhead.train.distributed import torch_process_group
from polyhead.train.distributed.bucketed_all_reduce import BucketedAllReduce
from polyhead.train.distributed.kv_store import CHUNK_CHARS
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.distributed.torch_process_group import find_backends
from polyhead.train.loop import derive_seed, train_step
from polyhead.train.run_training import run_training
from polyhead.train.train_state import TrainState
from polyhead.viz.run_record import read_metrics

pytestmark = [pytest.mark.usefixtures("unsynced"), pytest.mark.acceptance("G5", "A6")]
STEPS = 8
NUMBERS = itertools.count()
EXACT = {"dropout": 0.0}
SAME = {"split", "step", "skipped", "epoch", "lr", "best"}


@pytest.fixture(scope="module")
def place(unsynced: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ranks")
    write_corpus(directory)
    labelled = [
        f"{line}\t{'many' if len(line) > 18 else 'few'}"
        for line in (directory / "train.en").read_text().split("\n")[:-1]
    ]
    (directory / "labelled.tsv").write_text("\n".join(["text\tlabel", *labelled]) + "\n")
    pairs = zip(
        *((directory / f"train.{side}").read_text().split("\n")[:-1] for side in ("de", "en")), strict=True
    )
    talks = [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}
        for asked, said in pairs
    ]
    (directory / "talks.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    return directory


def recipe_of(place: Path, kind: str, out: str, **train: Any) -> Recipe:
    """A recipe of that task without anything random in its model."""
    # an eps that is large beside rounding, or Adam would make steps of gradients that are 0 but for it
    train = {"steps": STEPS, "log_every": 1, "eval_every": 4, "save_every": 4, "optimizer": {"name": "adamw", "eps": 1e-3},
             "schedule": {"name": "constant"}} | train  # fmt: skip
    recipe = small_recipe(place, out, model=EXACT | train.pop("model", {}), **train).model_dump(mode="json")
    if kind != "translation":
        recipe["task"] = {"name": kind}
        recipe["data"] |= {"train": ["train.en"], "valid": ["valid.en"], "documents": "line", "max_len": 16}
        recipe["model"]["kind"] = {"language-model": "decoder", "denoising": "encoder-decoder"}.get(
            kind, "encoder"
        )
        recipe["train"]["label_smoothing"] = None
    if kind == "replaced-tokens":
        recipe["model"] |= {"generator": 1, "head": False}
    if kind == "chat":
        recipe["data"] |= {"train": ["talks.jsonl"], "valid": ["talks.jsonl"], "max_len": 32}
        recipe["model"]["kind"] = "decoder"
    if kind == "classification":
        recipe["data"] |= {"train": ["labelled.tsv"], "valid": ["labelled.tsv"], "documents": "file"}
    if recipe["model"]["kind"] != "encoder-decoder":
        recipe["generation"] = {}
    return Recipe.model_validate(recipe)


def trained(recipe: Recipe, world: int, resume: bool = False) -> dict[str, Any]:
    """What comes of it: metrics, and weights."""

    def work(ranks: ProcessGroup) -> None:
        run_training(recipe, resume=resume, report=Notes(), ranks=ranks)

    if world == 1:
        run_training(recipe, resume=resume, report=Notes())
    else:
        ends = together(world, work)
        assert [end.code for end in ends] == [0] * world, ends
    steps = checkpoint.list_steps(recipe.out / "checkpoints")
    return {
        "metrics": read_metrics(recipe.out / "metrics.jsonl"),
        "final": load_file(recipe.out / "model.safetensors"),
        "last": checkpoint.read_checkpoint(recipe.out / "checkpoints" / f"step-{steps[-1]}"),
    }


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal within rounding: what was measured, the weights, the state of the optimiser and the average."""
    assert len(one["metrics"]) == len(other["metrics"]) > STEPS
    for a, b in zip(one["metrics"], other["metrics"], strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() - {"tokens_per_s", "texts_per_s", "ms_per_step", "seconds", "steps"}:
            assert (
                a[name] == b[name] if name in SAME else a[name] == pytest.approx(b[name], rel=1e-5, abs=1e-7)
            ), name
    assert_close(one["final"], other["final"])
    assert one["last"].tensors.keys() == other["last"].tensors.keys() == {"model", "optimizer_0", "ema"}
    for group, tensors in one["last"].tensors.items():
        assert_close(tensors, other["last"].tensors[group])
    counters = [
        {name: value for name, value in run["last"].state["progress"].items() if name not in ("sums", "best")}
        for run in (one, other)
    ]
    assert counters[0] == counters[1]
    assert one["last"].state["optimizers"] == other["last"].state["optimizers"]
    assert one["last"].extra == other["last"].extra


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=1e-5, msg=name)


KINDS = [
    "translation",
    "language-model",
    "masked-lm",
    "replaced-tokens",
    "denoising",
    "classification",
    "chat",
]


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_processes_learns_the_same(kind: str, place: Path) -> None:
    alone = trained(recipe_of(place, kind, f"{kind}-1"), 1)
    for world in (2, 3):
        assert_same(alone, trained(recipe_of(place, kind, f"{kind}-{world}"), world))


@pytest.mark.acceptance("G2")
def test_a_rank_without_rows_takes_part_with_nothing(place: Path) -> None:
    """Batches of two rows at most on three ranks, one batch an update: the third never has any."""
    changes = {"max_tokens": 26, "accumulate": 1}
    alone = trained(recipe_of(place, "translation", "few-1", **changes), 1)
    assert_same(alone, trained(recipe_of(place, "translation", "few-3", **changes), 3))


@pytest.mark.acceptance("G2")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("translation", {}),
        ("masked-lm", {}),
        ("classification", {}),
        # two rows at most, so the third rank has nothing, and the second now something and now nothing
        ("translation", {"max_tokens": 26, "accumulate": 2}),
        ("translation", {"freeze": ["encoder"]}),  # whose statistics go on, and nothing goes back to them
    ],
    ids=["translation", "masked-lm", "classification", "few", "frozen"],
)
def test_norms_over_the_batch_count_all_of_it(kind: str, changes: dict[str, Any], place: Path) -> None:
    """Forward and backward, whatever part of it a rank has."""
    name, norm = f"batchnorm-{kind}-{len(changes)}-{'freeze' in changes}", {"norm": "batchnorm"}
    alone = trained(recipe_of(place, kind, f"{name}-1", model=norm, **changes), 1)
    means = [w for name, w in alone["final"].items() if name.endswith("running_mean")]
    assert means and all(w.abs().max() > 0 for w in means)
    for world in (2, 3):
        assert_same(alone, trained(recipe_of(place, kind, f"{name}-{world}", model=norm, **changes), world))


@pytest.mark.parametrize(
    ("optimizer", "near"),
    [
        ({"name": "adamw", "eps": 1e-3}, 1e-5),
        ({"name": "adafactor"}, 1e-4),
        ({"name": "muon"}, 1e-2),  # which computes in bf16
    ],
    ids=["adamw", "adafactor", "muon"],
)
def test_optimizers_step_alike_on_all_ranks(optimizer: dict[str, Any], near: float, place: Path) -> None:
    """Also with parts that are frozen, rates of parts, and gradients that are cut short."""
    changes = {
        "optimizer": optimizer, "freeze": ["encoder_embedding"], "lr_factors": {"decoder": 2.0}, "clip_norm": 0.1,
        "lr": 1e-3, "ema": None,
    }  # fmt: skip
    name = optimizer["name"]
    a, b = (trained(recipe_of(place, "translation", f"{name}-{n}", **changes), n) for n in (1, 2))
    for measure in ("loss", "grad_norm"):
        ours, theirs = ([row[measure] for row in run["metrics"] if measure in row] for run in (a, b))
        assert ours == pytest.approx(theirs, rel=near), measure
        assert min(ours) > 0.1  # gradients were cut
    frozen = [w for w in a["final"] if w.startswith("encoder_embedding.")]
    assert frozen
    assert all(torch.equal(a["final"][w], b["final"][w]) for w in frozen)


@pytest.mark.acceptance("G6")
@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 3), (3, 2)])
def test_a_run_goes_on_with_another_number_of_processes(first: int, then: int, place: Path) -> None:
    name = f"on-{first}-{then}"
    whole = trained(recipe_of(place, "translation", f"{name}-whole"), 1)
    trained(recipe_of(place, "translation", name, steps=4), first)
    assert_same(whole, trained(recipe_of(place, "translation", name), then, resume=True))


@pytest.mark.acceptance("R1", "R12")
def test_two_processes_repeat_themselves_to_the_bit_also_over_a_resume(place: Path) -> None:
    """With dropout, which is drawn anew on every rank."""
    model = {"dropout": 0.2}
    whole = trained(recipe_of(place, "translation", "bits-whole", model=model), 2)
    again = trained(recipe_of(place, "translation", "bits-again", model=model), 2)
    trained(recipe_of(place, "translation", "bits-cut", model=model, steps=4), 2)
    on = trained(recipe_of(place, "translation", "bits-cut", model=model), 2, resume=True)
    for other in (again, on):
        assert all(torch.equal(w, other["final"][name]) for name, w in whole["final"].items())
        for group, tensors in whole["last"].tensors.items():
            assert all(torch.equal(t, other["last"].tensors[group][name]) for name, t in tensors.items()), (
                group
            )
    alone = trained(recipe_of(place, "translation", "bits-alone", model=model), 1)
    assert not all(torch.equal(w, alone["final"][name]) for name, w in whole["final"].items())


def test_ranks_draw_their_own_dropout() -> None:
    assert len({derive_seed(7, step, rank) for step in range(50) for rank in range(8)}) == 400
    assert derive_seed(7, 3, 0) == derive_seed(7, 3)


def test_every_rank_draws_for_itself_while_it_trains(place: Path) -> None:
    recipe = recipe_of(place, "translation", "draws", steps=3)

    def work(ranks: ProcessGroup) -> list[int]:
        seeds, real = [], loop.train_step

        def noting(*arguments: Any) -> bool:
            seeds.append(torch.initial_seed())
            return real(*arguments)

        loop.train_step = noting  # type: ignore[assignment]
        run_training(recipe, report=Notes(), ranks=ranks)
        return seeds

    first, second = together(2, work)
    assert len({*first.said, *second.said}) == 6
    assert first.said == [derive_seed(recipe.train.seed, step) for step in (1, 2, 3)]  # as one process would


def noise(place: Path, kind: str, world: int, seed: int = 7) -> list[list[list[Any]]]:
    """For each rank, what its noise was drawn from in every step: epoch and row where it follows from them, and bits."""
    train = {"steps": 8, "max_tokens": 600, "accumulate": 1, "seed": seed, "eval_every": 99, "save_every": 99}
    recipe = recipe_of(place, kind, f"noise-{next(NUMBERS)}", **train)
    options = {"classification": {"token_dropout": 0.2}, "translation": {"token_split": 0.2}}
    if kind in options:
        recipe = recipe.model_copy(update={"task": Choice(kind, **options[kind])})

    def work(ranks: ProcessGroup) -> list[list[Any]]:
        module = importlib.import_module(f"polyhead.train.tasks.{kind.removesuffix('-lm')}")
        new: list[Any] = []
        steps: list[list[Any]] = []
        rehearse, update, drawn, rand = (
            loop.check_memory,
            loop.train_step,
            module.__dict__.get("drawn"),
            torch.rand,
        )

        def noting(key: list[int]) -> np.random.Generator:
            if len(key) == 4:  # what is drawn, seed, epoch, row: a plan has no row
                new.append([*key[2:], drawn(key).bytes(8).hex()])
            return drawn(key)

        def drawing(*shape: Any, **kind: Any) -> Tensor:
            found = rand(*shape, **kind)
            new.append([0, 0, str(found.flatten()[:4].tolist())])
            return found

        def rehearsed(*given: Any) -> None:
            rehearse(*given)
            new.clear()

        def updated(*given: Any) -> bool:
            steps.extend(new)
            new.clear()
            return update(*given)

        loop.check_memory, loop.train_step = rehearsed, updated  # type: ignore[assignment]
        if drawn is not None:
            module.drawn = noting
        else:
            torch.rand = drawing  # type: ignore[assignment]
        try:
            run_training(recipe, report=Notes(), ranks=ranks)
        finally:
            loop.check_memory, loop.train_step, torch.rand = rehearse, update, rand
            if drawn is not None:
                module.drawn = drawn
        return steps

    ends = together(world, work)
    assert [end.code for end in ends] == [0] * world, ends
    return [end.said for end in ends]


@pytest.mark.acceptance("A11")
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.slow) for kind in ("masked-lm", "denoising", "translation")]
    + ["classification"],
)
def test_noise_differs_between_ranks_and_epochs_and_repeats_from_the_seed(kind: str, place: Path) -> None:
    """What is drawn for a text is nowhere drawn again: not by another process, not in the next epoch."""
    first, second = ranks = noise(place, kind, 2)
    both = [tuple(one) for one in first + second]
    assert first and second and len({bits for _, _, bits in both}) == len(both)
    if kind in ("classification", "translation"):  # drawn from the step and the rank
        assert noise(place, kind, 2) == ranks
        other = noise(place, kind, 2, seed=8)
        assert not {bits for _, _, bits in both} & {bits for one in other for _, _, bits in one}
        return
    # the noise of a text follows from its epoch and its row: it is the same on any number of processes
    rows = [{row for epoch, row, _ in both if epoch == e} for e in (0, 1)]
    assert rows[0] & rows[1]
    assert sorted(both) == sorted(tuple(one) for one in noise(place, kind, 1)[0])


@pytest.mark.parametrize("when", ["at first", "later"])
def test_weights_that_drift_apart_become_those_of_the_first_rank(when: str, place: Path) -> None:
    """As on processors that round differently, only more."""
    recipe = recipe_of(place, "translation", f"drift-{when[-2:]}", steps=5, save_every=2)

    def work(ranks: ProcessGroup) -> str:
        if ranks.rank and when == "at first":
            make = run_training_module.build
            run_training_module.build = lambda config, seed: make(config, seed + 1)
        elif ranks.rank:
            real, calls = loop.train_step, [0]

            def drifting(training: TrainState, *arguments: Any) -> bool:
                calls[0] += 1
                done = real(training, *arguments)
                if calls[0] == 3:
                    with torch.no_grad():
                        for w in training.model.parameters():
                            w.add_(1e-3)
                return done

            loop.train_step = drifting  # type: ignore[assignment]
        learned: list[str] = []
        finish = run_training_module._finish

        def noting(run: Run, *arguments: Any) -> Any:  # in the end all have the average
            own = dict(run.model.named_parameters())
            learned.append(
                hashlib.sha256(b"".join(own[name].detach().numpy().tobytes() for name in own)).hexdigest()
            )
            return finish(run, *arguments)

        run_training_module._finish = noting
        run_training(recipe, report=Notes(), ranks=ranks)
        return learned[0]

    ends = together(2, work)
    assert [end.code for end in ends] == [0, 0], ends
    assert ends[0].said == ends[1].said
    if when == "at first":
        alone = recipe_of(place, "translation", "drift-none", steps=5, save_every=2)
        assert_close(trained(alone, 1)["final"], load_file(recipe.out / "model.safetensors"))


def test_machines_need_not_see_the_same_files(place: Path, tmp_path: Path) -> None:
    """Each of two machines tokenizes the text for itself; the other has nothing of the first one's directory."""
    recipe = recipe_of(place, "translation", "machines-1")
    whole = trained(recipe, 1)

    def work(ranks: ProcessGroup) -> list[str]:
        home = tmp_path / f"machine-{ranks.rank // 2}"
        home.mkdir(exist_ok=True)
        os.chdir(home)
        data = recipe.data.model_copy(update={"cache": None})
        own = recipe.model_copy(update={"out": Path("run"), "data": data})
        train = own.train.model_copy(update={"steps": 4})
        run_training(own.model_copy(update={"train": train}), report=Notes(), ranks=ranks)
        run_training(own, report=Notes(), ranks=ranks, resume=True)
        return sorted(path.name for path in Path("run").iterdir())

    ends = together(4, work, machines=2)
    assert [end.code for end in ends] == [0] * 4, ends
    assert "model.safetensors" in ends[0].said
    assert ends[2].said == ends[3].said == ["data"]
    assert_close(whole["final"], load_file(tmp_path / "machine-0" / "run" / "model.safetensors"))


def test_a_tokenizer_reaches_other_machines_whatever_their_locale() -> None:
    script = textwrap.dedent(r"""
        import sys
        from types import SimpleNamespace
        from polyhead.core.registry import Choice
        from polyhead.tokenizers.train_tokenizer import train_tokenizer
        from polyhead.train.distributed.rank_sync import broadcast_tokenizer
        made, told = train_tokenizer(["ein H\u00fcnd bellt \u72d7"], Choice("char"), 60), []
        broadcast_tokenizer(SimpleNamespace(world_size=2, on_rank0=lambda files: told.append(files())), lambda: made)
        other = broadcast_tokenizer(SimpleNamespace(world_size=2, on_rank0=lambda files: told[0]), lambda: None)
        assert other.sha256 == made.sha256 and "\u72d7" in told[0]["tokenizer.json"]
        print(sys.getfilesystemencoding())
    """)
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=plain)
    assert done.stdout == "ascii\n", done.stderr[-500:]


# what is dealt out


def test_parts_hold_every_row_once_in_even_lengths() -> None:
    rows = np.arange(11)
    parts = shard_rows(rows, 4)
    assert [part.tolist() for part in parts] == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7]]
    assert [part.tolist() for part in shard_rows(rows[:2], 4)] == [[0], [1]]


def test_packed_rows_keep_their_numbers_and_pieces() -> None:
    pieces = Segments(np.arange(7) * 10, np.arange(7) + 1)
    packed = PackedRows(3, np.array([5, 6, 7]), pieces, np.array([0, 0, 1, 2, 2, 2, 2]))
    first, second = packed.shard(2)
    assert (first.epoch, first.rows.tolist(), first.row_of_segment.tolist()) == (
        3,
        [5, 7],
        [0, 0, 1, 1, 1, 1],
    )
    assert first.segments.starts.tolist() == [0, 10, 30, 40, 50, 60]
    assert (second.rows.tolist(), second.row_of_segment.tolist(), second.segments.lengths.tolist()) == (
        [6],
        [0],
        [3],
    )
    assert len(packed.shard(5)) == 3


# gradients


def two_halves(tensor: Tensor) -> Callable[[], None]:
    """As if another rank had the same."""
    tensor *= 2
    return lambda: None


@pytest.mark.parametrize("size", [1, 200, 10**6])
def test_gradients_travel_in_buckets_and_those_that_are_nowhere_stay_so(size: int) -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 5), "unused": nn.Linear(3, 3), "frozen": nn.Linear(5, 2)})
    model["frozen"].requires_grad_(False)
    gradients = BucketedAllReduce(model, two_halves, size)
    assert sum(len(bucket.parameters) for bucket in gradients.buckets) == 4
    assert len(gradients.buckets) == {1: 4, 200: 1, 10**6: 1}[size]
    x = torch.randn(2, 4)
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        with gradients.reduce_gradients():
            model["frozen"](model["used"](x)).sum().backward()
        wanted = torch.autograd.grad(
            model["frozen"](model["used"](x)).sum(), list(model["used"].parameters())
        )
        for p, grad in zip(model["used"].parameters(), wanted, strict=True):
            torch.testing.assert_close(p.grad, 2 * grad)
        assert all(p.grad is None for name in ("unused", "frozen") for p in model[name].parameters())
    assert gradients.nbytes == 2 * 4 * (
        25 + 12 + 4
    )  # two updates of 37 numbers and a flag for each of four tensors


def test_gradients_leave_while_others_are_computed() -> None:
    """The last layer's are on their way before the first layer's exist."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    first: nn.Linear = model[0]  # type: ignore[assignment]
    seen: list[bool] = []

    def start(tensor: Tensor) -> Callable[[], None]:
        seen.append(first.weight.grad is not None)
        return lambda: None

    gradients = BucketedAllReduce(model, start, 80)
    with gradients.reduce_gradients():
        model(torch.randn(2, 4)).sum().backward()
    assert seen == [False, False, True]


@pytest.mark.acceptance("G2")
def test_ranks_that_have_computed_different_parts_send_the_same_buckets() -> None:
    """Experts that a rank's tokens did not pick have no gradient there, and have one elsewhere, or nowhere."""

    def layer() -> MixtureOfExperts:
        torch.manual_seed(0)
        return MixtureOfExperts(8, 16, n_experts=6, top_k=1, normalize=False)

    tokens = torch.randn(6, 8, generator=torch.Generator().manual_seed(4))[None]

    def work(ranks: ProcessGroup) -> dict[str, Any]:
        experts = layer()
        with ranks.reduce_gradients(experts):
            for i in range(ranks.rank, 6, 4):  # two ranks have two tokens, two have one
                experts(tokens[:, i : i + 1]).square().sum().backward()
        return {name: None if p.grad is None else p.grad.tolist() for name, p in experts.named_parameters()}

    ends = together(4, work)
    alone = layer()
    for i in range(6):
        alone(tokens[:, i : i + 1]).square().sum().backward()
    missing = 0
    for name, p in alone.named_parameters():
        assert ends[0].said[name] == ends[1].said[name] == ends[3].said[name]
        missing += p.grad is None
        if p.grad is None:
            assert ends[0].said[name] is None, name
        else:
            torch.testing.assert_close(torch.tensor(ends[0].said[name]), p.grad, rtol=1e-5, atol=1e-6)
    assert missing


def sent() -> int:
    """Bytes that this process has sent over TCP so far: its sockets know (struct tcp_info of linux/tcp.h)."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            total += int.from_bytes(info[200:208], "little")  # tcpi_bytes_sent
    return total


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_step_sends_the_bytes_that_a_plan_says(world: int) -> None:
    """Counted at the sockets: what leaves them for a step is within 1 % of the formula, and of what the plan says."""
    config = ModelConfig(
        kind="decoder", vocab_size=3000, d_model=64, n_heads=2, n_layers=3, d_ff=256, max_len=64, dropout=0.0
    )

    def work(ranks: ProcessGroup) -> list[int]:
        model = build(config, 1)
        task = RandomTokenTask(config, BatchShape(2, 16))
        training = TrainState(model, TrainConfig(steps=10, precision="fp32"), config.d_model, 10)
        counts = []
        for _ in range(4):
            training.progress.step += 1
            train_step(training, task, [task.collate(None)], TrainConfig(steps=10, precision="fp32"), ranks)
            ranks.all_reduce(0)
            counts.append(sent())
        return counts

    ends = together(world, work)
    assert [end.code for end in ends] == [0] * world, ends
    learned = sum(p.numel() for p in build(config, 1).parameters())
    planned = estimate_traffic(config, BatchShape(2, 16), learned, ParallelLayout(data_parallel=world))
    assert planned.data == ring_all_reduce_bytes(4 * learned, world) == 2 * (world - 1) / world * 4 * learned
    for end in ends:
        steps = np.diff(end.said)
        assert steps.mean() == pytest.approx(planned.data, rel=0.01)
        assert (steps > planned.data).all()  # counts, flags and pulses come on top


@pytest.mark.parametrize(
    ("gpus", "here", "wanted"),
    [(0, 2, "gloo"), (1, 2, "gloo"), (2, 2, "cpu:gloo,cuda:nccl"), (8, 2, "cpu:gloo,cuda:nccl")],
)
def test_gpus_talk_by_themselves_where_each_process_has_one(
    gpus: int, here: int, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert find_backends() == wanted
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert find_backends() == "gloo"


def test_what_not_all_can_use_none_does() -> None:
    def work(ranks: ProcessGroup) -> Any:
        return [torch.distributed.get_backend(), ranks.all_reduce(1)]

    def pretend() -> None:
        able = "cpu:gloo,cuda:nccl" if os.environ["RANK"] == "1" else "gloo"
        torch_process_group.find_backends = lambda: able

    assert [end.said for end in together(2, work, before=pretend)] == [["gloo", [2.0]]] * 2


# what is refused


def refused(place: Path, name: str, change: Callable[[Recipe], Recipe]) -> tuple[str, Any]:
    """What rank 1 says when its recipe is another one, and what rank 0 says."""
    recipe = recipe_of(place, "translation", name)

    def work(ranks: ProcessGroup) -> None:
        run_training(change(recipe) if ranks.rank else recipe, report=Notes(), ranks=ranks)

    first, other = together(2, work)
    assert (first.code, other.code) == (69, 2), (first, other)
    assert not checkpoint.list_steps(recipe.out / "checkpoints")
    assert not (recipe.out / "run.lock").exists()
    return str(other.said), first.said


def test_another_text_on_a_rank_is_refused(place: Path, tmp_path: Path) -> None:
    write_corpus(tmp_path, n=41)
    change = {"root": tmp_path}
    said, heard = refused(
        place, "other-text", lambda r: r.model_copy(update={"data": r.data.model_copy(update=change)})
    )
    assert said.startswith("rank 1: the training text, the validation text: not the same as on rank 0; all")
    assert heard == ""  # it has been said already


def test_another_recipe_on_a_rank_is_refused(place: Path) -> None:
    change = {"lr": 1e-4}
    said, _ = refused(
        place, "other-recipe", lambda r: r.model_copy(update={"train": r.train.model_copy(update=change)})
    )
    assert said.startswith("rank 1: the recipe: not the same as on rank 0")


def test_missing_files_on_a_rank_are_told_by_it(place: Path, tmp_path: Path) -> None:
    change = {"root": tmp_path}
    said, _ = refused(
        place, "no-text", lambda r: r.model_copy(update={"data": r.data.model_copy(update=change)})
    )
    assert said.startswith("rank 1: data.train: no file 'train.de'")


def test_what_is_told_is_json_and_reaches_all() -> None:
    def work(ranks: ProcessGroup) -> Any:
        number = ranks.on_rank0(lambda: {"loss": 0.1 + 0.2, "bad": float("nan"), "rank": ranks.rank})
        tensor = torch.full((3,), float(ranks.rank + 5))
        ranks.broadcast([tensor])
        order = ranks.rank0_first(lambda: ranks.rank)
        return [json.dumps(number), tensor.tolist(), order, ranks.all_reduce(1, 0.1 * ranks.rank)]

    ends = together(3, work)
    for rank, end in enumerate(ends):
        told, tensor, order, sums = end.said
        assert (told, tensor, order) == (
            '{"loss": 0.30000000000000004, "bad": NaN, "rank": 0}',
            [5.0] * 3,
            rank,
        )
        assert sums == pytest.approx([3, 0.3])
        assert sums == ends[0].said[3]


@pytest.mark.parametrize("more", [-1, 0, 1, 9 * CHUNK_CHARS])
def test_what_is_told_may_be_of_any_size(more: int) -> None:
    """As the tokenizer of a published model, which has more than a store takes at once."""

    def work(ranks: ProcessGroup) -> bool:
        return bool(
            ranks.on_rank0(lambda: "ä" + "x" * (CHUNK_CHARS + more - 8))
            == "ä" + "x" * (CHUNK_CHARS + more - 8)
        )

    assert [end.said for end in together(2, work)] == [True, True]


def test_turns_come_one_after_another(tmp_path: Path) -> None:
    """The first of all, then the first of every other machine, then the rest; nobody goes on before all are done."""
    book = tmp_path / "book"

    def work(ranks: ProcessGroup) -> str:
        def write() -> None:
            time.sleep(0.1 * (3 - ranks.rank))  # so that those without patience would come before
            with book.open("a") as file:
                file.write(str(ranks.rank))

        ranks.rank0_first(write)
        return book.read_text()

    ends = together(4, work, machines=2)
    assert [end.said for end in ends] == ["0231"] * 4
