"""Training steps of Polyhead and of other libraries: the same model and batches, a process each.

Shapes: B rows, S longest source, T longest target or row, V vocabulary.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch._inductor.config
import torch.nn.functional as F
from _shared import TorchTransformer, apart, interleaved, ratio, twin
from _workloads import Batch, Workload, count_labels, shape_of
from torch import Tensor, nn

from polyhead.config.recipe import TrainConfig
from polyhead.data.batching.collate import PairBatch
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.models import CausalLM, Seq2Seq, build
from polyhead.nn.loss import IGNORE_INDEX, Loss
from polyhead.train.loop import train_step
from polyhead.train.precision import resolve_precision
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.tasks.common import causal_lm_loss, seq2seq_loss
from polyhead.train.train_state import TrainState

MODES = {
    "eager": (False, "fp32"),
    "bf16": (False, "bf16"),
    "compile": (True, "fp32"),
    "compile+bf16": (True, "bf16"),
}
"""Whether a peer's forward pass with its loss is compiled, and its precision (autocast)."""
PEERS = ("torch.nn", "Hugging Face", "nanoGPT")
HAS_BF16 = resolve_precision("auto", torch.device("cpu")) == "bf16"  # others emulate it, slower than fp32
OURS = {"Polyhead fp32": "fp32"} | ({"Polyhead bf16": "bf16"} if HAS_BF16 else {})
ANCHOR = list(OURS)[-1]  # takes part in every group, so that groups can be compared
LR, CLIP, WEIGHT_DECAY = 1e-3, 1.0, 0.1
_LOSS_TOLERANCE = 0.02  # of one model in fp32 and bf16, in nats a label


class StepTask:
    """What the training loop needs of a task: labels and loss of a batch, as in the real tasks."""

    def __init__(self, smoothing: float) -> None:
        self.smoothing = smoothing

    def count_labels(self, batch: Batch) -> int:
        return count_labels(batch)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        if isinstance(batch, PairBatch):
            return seq2seq_loss(model, batch, self.smoothing)
        return causal_lm_loss(model, batch, self.smoothing)


def time_contestants(
    workload: Workload, options: argparse.Namespace, systems: Sequence[str]
) -> dict[str, Speed]:
    """The speed of Polyhead and of each peer in each mode, by name.

    All take turns, in groups that fit into memory. With no rounds they only start, which fills the cache of
    torch.compile. ``options`` are those of ``add_options``.
    """
    peers = [f"{peer} {mode}" for peer in systems for mode in options.modes if peer in options.systems]
    others = [*(name for name in OURS if name != ANCHOR), *peers]
    settings = argparse.Namespace(**vars(options) | {"workload": workload})
    room = max(1, int(0.8 * _available_bytes() / workload.estimate_bytes()) - 1)
    n_groups = -(-len(others) // room)
    anchor_seconds: list[float] = []
    ratios: dict[str, float] = {}
    for group in range(n_groups):
        members = [ANCHOR, *others[group::n_groups]]
        with running({name: partial(build_step, name) for name in members}, settings) as calls:
            times = interleaved(calls, options.rounds, warmup=0)
        if options.rounds:
            anchor_seconds += times[ANCHOR]
            ratios |= {name: ratio(of_name, times[ANCHOR]) for name, of_name in times.items()}
    if not options.rounds:
        return {}
    anchor_speed = workload.labels * options.steps / statistics.median(anchor_seconds)
    names = [name for name in (*OURS, *peers) if name in ratios]
    return {name: Speed(anchor_speed / ratios[name], ratios[name]) for name in names}


class Speed(NamedTuple):
    """The speed of a contestant of training."""

    tokens_per_s: float  # of labels
    anchor_ratio: float  # how many times as fast the anchor is: the median of paired ratios


@contextmanager
def running(
    builders: Mapping[str, Callable[[Any], Callable[[], object]]], options: argparse.Namespace
) -> Iterator[dict[str, Callable[[], Any]]]:
    """The contestants that start, in processes of their own; of one that does not, a line is printed.

    The losses of their first steps must agree, unless dropout makes them differ.
    """
    losses: dict[str, float] = {}
    with ExitStack() as stack:
        calls: dict[str, Callable[[], Any]] = {}
        for name, builder in builders.items():
            start = time.perf_counter()
            try:
                calls |= stack.enter_context(apart({name: builder}, options))
            except EOFError:
                print(f"{name} does not start and takes no part", flush=True)
                continue
            if not options.workload.config.dropout:
                losses[name] = calls[name]()
            print(f"{name}: ready after {time.perf_counter() - start:.0f} s", flush=True)
        spread = max(losses.values(), default=0.0) - min(losses.values(), default=0.0)
        assert spread < _LOSS_TOLERANCE, f"these are not the same model: {losses}"
        yield calls


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def build_step(name: str, options: argparse.Namespace) -> Callable[[], float]:
    """The turn of a contestant: ``options.steps`` steps; it returns the loss of the first step of all."""
    tune_malloc()  # as the command line does; peers have it too
    torch.set_num_threads(options.threads)
    torch._inductor.config.compile_threads = 1  # no processes that would outlive this one
    workload: Workload = options.workload
    model = build(workload.config, seed=1).train()
    if name in OURS:
        step = our_step(model, workload, OURS[name])
    else:
        peer, mode = name.rsplit(" ", 1)
        step = _peer_step(peer, mode, model, workload, options.nanogpt)
    at = iter(range(10**9))

    def next_step() -> float:
        return step(workload.batches[next(at) % len(workload.batches)])

    first_loss = next_step()
    n_shapes = len({shape_of(batch) for batch in workload.batches})
    for _ in range(len(workload.batches) if n_shapes > 1 else 1):  # compiled code depends on shapes
        next_step()

    def turn() -> float:
        for _ in range(options.steps):
            next_step()
        return first_loss

    return turn


def our_step(model: nn.Module, workload: Workload, precision: str) -> Callable[[Batch], float]:
    """Steps of the training loop, all that it does at each but reporting."""
    config = TrainConfig(
        steps=10**6, lr=LR, clip_norm=CLIP, precision=precision, schedule={"name": "constant", "warmup": 0},
        label_smoothing=workload.smoothing or None,
        optimizer={"name": "adamw", "beta2": 0.99, "eps": 1e-8, "weight_decay": WEIGHT_DECAY},
    )  # fmt: skip
    training = TrainState(model, config, workload.config.d_model, 10**6)
    strategy = parallelize(training, StepTask(config.label_smoothing or 0.0), config)

    def step(batch: Batch) -> float:
        training.progress.step += 1
        return train_step(strategy, [batch]).read().nll / count_labels(batch)

    return step


def _peer_step(
    peer: str, mode: str, model: nn.Module, workload: Workload, nanogpt: Path | None
) -> Callable[[Batch], float]:
    """Steps as users of a library write them: autocast, clipping, fused AdamW."""
    module, loss_fn = make_peer(peer, model, workload, nanogpt)
    is_compiled, precision = MODES[mode]
    learned = [p for p in module.train().parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in learned if p.ndim >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in learned if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.99), eps=1e-8, fused=True)
    loss_fn = torch.compile(loss_fn) if is_compiled else loss_fn

    def step(batch: Batch) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_fn(*_peer_inputs(batch))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learned, CLIP)
        optimizer.step()
        return float(loss.detach())

    return step


def _peer_inputs(batch: Batch) -> tuple[Tensor | None, ...]:
    """The tensors of a batch, each None where batches have none.

    Of pairs: (B, S), (B, T), (B, T) and True at padding (B, S). Of rows: (B, T), (B, T) and positions (B, T).
    """
    if isinstance(batch, TokenWindows):
        return batch.tokens, batch.labels, batch.pos
    return (
        batch.source,
        batch.target,
        batch.labels,
        None if batch.source_pos is None else batch.source_pos < 0,
    )


def make_peer(
    peer: str, model: nn.Module, workload: Workload, nanogpt: Path | None
) -> tuple[nn.Module, Callable[..., Tensor]]:
    """A library's model with the weights of ours, and its mean loss of ``_peer_inputs``."""

    def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(
            logits.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORE_INDEX,
            label_smoothing=workload.smoothing,
        )

    if isinstance(model, Seq2Seq):
        torchs = TorchTransformer(model) if peer == "torch.nn" else twin(model, *workload.special_ids)

        def pair_loss(source: Tensor, target: Tensor, labels: Tensor, padding: Tensor | None) -> Tensor:
            if peer == "torch.nn":
                return mean_loss(torchs(source, target, padding), labels)
            mask = None if padding is None else (~padding).long()
            out = torchs(input_ids=source, attention_mask=mask, decoder_input_ids=target, use_cache=False)
            return mean_loss(out.logits, labels)

        return torchs, pair_loss
    assert isinstance(model, CausalLM)
    if peer == "nanoGPT":
        assert nanogpt is not None
        gpt = make_nanogpt(model, nanogpt)
        return gpt, lambda tokens, labels, pos: gpt(tokens, labels)[1]
    if peer == "torch.nn":
        plain = TorchLanguageModel(model)
        return plain, lambda tokens, labels, pos: mean_loss(plain(tokens, pos), labels)
    theirs = make_gpt2(model)

    def row_loss(tokens: Tensor, labels: Tensor, pos: Tensor | None) -> Tensor:
        mask = None if pos is None else document_mask(pos)[:, None]
        out = theirs(tokens, attention_mask=mask, position_ids=pos, use_cache=False)
        return mean_loss(out.logits, labels)

    return theirs, row_loss


def document_mask(pos: Tensor) -> Tensor:
    """0 where a token attends, -inf elsewhere, of rows with documents: (B, T) -> (B, T, T)."""
    document = (pos == 0).cumsum(1)
    is_visible = (document[:, :, None] == document[:, None]).tril()
    return torch.zeros(is_visible.shape).masked_fill(~is_visible, float("-inf"))


class TorchLanguageModel(nn.Module):
    """A decoder of torch's own layers, without biases, with the weights of ours."""

    def __init__(self, ours: Any) -> None:
        super().__init__()
        c = ours.config
        self.n_heads = c.n_heads
        layer = nn.TransformerEncoderLayer(
            c.d_model, c.n_heads, c.d_ff or 0, 0.0, "gelu", batch_first=True, norm_first=True, bias=False
        )
        self.token, self.position = nn.Embedding(c.vocab_size, c.d_model), nn.Embedding(c.max_len, c.d_model)
        self.layers = nn.TransformerEncoder(
            layer, c.n_layers, nn.LayerNorm(c.d_model, bias=False), enable_nested_tensor=False
        )
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(c.max_len))
        self.mask: Tensor
        with torch.no_grad():
            self.token.weight.copy_(ours.embedding.token.weight)
            self.position.weight.copy_(ours.embedding.position.weight)
            self.layers.norm.weight.copy_(ours.stack.final_norm.weight)
            for theirs, block in zip(self.layers.layers, ours.stack.layers, strict=True):
                theirs.self_attn.in_proj_weight.copy_(_join_projections(block.attn))
                theirs.self_attn.out_proj.weight.copy_(block.attn.o_proj.weight)
                theirs.linear1.weight.copy_(block.ffn.up_proj.weight)
                theirs.linear2.weight.copy_(block.ffn.down_proj.weight)
                theirs.norm1.weight.copy_(block.attn_residual.norm.weight)
                theirs.norm2.weight.copy_(block.ffn_residual.norm.weight)

    def forward(self, tokens: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, T), and positions where rows have documents -> (B, T, V)."""
        length = tokens.size(1)
        if pos is None:
            x = self.token(tokens) + self.position.weight[:length]
            x = self.layers(x, self.mask[:length, :length], is_causal=True)
        else:
            mask = document_mask(pos).repeat_interleave(self.n_heads, 0)  # a mask of each row and head
            x = self.layers(self.token(tokens) + self.position(pos), mask)
        return F.linear(x, self.token.weight)


def _join_projections(attn: Any) -> Tensor:
    return torch.cat([p.weight for p in (attn.q_proj, attn.k_proj, attn.v_proj)])


def make_gpt2(ours: CausalLM) -> nn.Module:
    """GPT-2 of transformers with the weights of ours and biases of zero that do not learn."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from polyhead.hf.families.gpt2 import GPT2_FAMILY
    from polyhead.hf.family import to_hf
    from polyhead.nn.state import named_state

    c = ours.config
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=c.vocab_size, n_positions=c.max_len, n_embd=c.d_model, n_layer=c.n_layers,
            n_head=c.n_heads,
            activation_function="gelu", bos_token_id=None, eos_token_id=None, resid_pdrop=0, embd_pdrop=0,
            attn_pdrop=0,
        )
    )  # fmt: skip
    own = named_state(ours)
    biases = {
        name.replace("weight", "bias"): t.new_zeros(len(t))
        for name, t in own.items()
        if "layers" in name or "norm" in name
    }
    weights = to_hf(GPT2_FAMILY.weight_map, own | biases, c)
    theirs.load_state_dict(weights | {"lm_head.weight": weights["transformer.wte.weight"]})
    for name, parameter in theirs.named_parameters():
        parameter.requires_grad_(not name.endswith("bias"))
    return theirs


def make_nanogpt(ours: Any, clone: Path) -> nn.Module:
    """The model of nanoGPT's model.py, from a clone of its repository, with the weights of ours."""
    c, module = ours.config, _load_module(clone / "model.py")
    config = module.GPTConfig(
        block_size=c.max_len, vocab_size=c.vocab_size, n_layer=c.n_layers, n_head=c.n_heads, n_embd=c.d_model,
        dropout=0.0, bias=False,
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its size
        gpt = module.GPT(config)
    layers = gpt.transformer
    with torch.no_grad():
        layers.wte.weight.copy_(ours.embedding.token.weight)
        layers.wpe.weight.copy_(ours.embedding.position.weight)
        layers.ln_f.weight.copy_(ours.stack.final_norm.weight)
        for theirs, block in zip(layers.h, ours.stack.layers, strict=True):
            theirs.attn.c_attn.weight.copy_(_join_projections(block.attn))
            theirs.attn.c_proj.weight.copy_(block.attn.o_proj.weight)
            theirs.mlp.c_fc.weight.copy_(block.ffn.up_proj.weight)
            theirs.mlp.c_proj.weight.copy_(block.ffn.down_proj.weight)
            theirs.ln_1.weight.copy_(block.attn_residual.norm.weight)
            theirs.ln_2.weight.copy_(block.ffn_residual.norm.weight)
    return gpt


def _load_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("nanogpt_model", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # torch.compile looks there
    spec.loader.exec_module(module)
    return module


def add_options(parser: argparse.ArgumentParser, rounds: int | None, steps: int | None) -> None:
    """Options of ``time_contestants``; None: they depend on the workload."""
    parser.add_argument("--rounds", type=int, default=rounds, help="turns of each; 0: compile only")
    parser.add_argument("--steps", type=int, default=steps, help="training steps of a turn")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    modes = [mode for mode, (_, precision) in MODES.items() if HAS_BF16 or precision == "fp32"]
    parser.add_argument("--modes", nargs="*", choices=list(MODES), default=modes, help="of the peers")
    parser.add_argument("--systems", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument(
        "--nanogpt", type=Path, help="a clone of nanoGPT, as a further peer of language models"
    )


def peers_of(workload: Workload, options: argparse.Namespace) -> tuple[str, ...]:
    """The libraries that have the model of a workload; nanoGPT has no documents inside a row."""
    batch = workload.batches[0]
    if isinstance(batch, PairBatch) or batch.has_documents or options.nanogpt is None:
        return PEERS[:2]
    return PEERS


def make_stepper(
    module: nn.Module,
    loss: Callable[[Any], Tensor],
    batches: Sequence[Any],
    make_context: Callable[[], contextlib.AbstractContextManager[object]],
) -> Callable[[], None]:
    """A function that does the next step of a module, as users of torch write it."""
    module.train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    numbers = iter(range(10**9))

    def step() -> None:
        with make_context():
            value = loss(batches[next(numbers) % len(batches)])
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step
