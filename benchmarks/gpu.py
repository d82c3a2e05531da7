"""One GPU: share of its peak that training uses, and share of its bandwidth that decoding uses.

./dev bench gpu NAME [...]    one of train, decode

The card's name and peaks stand above the tables; `--peak-tflops` and `--bandwidth` give those of another one.
`--device cpu` with small sizes shows that it works.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _shared import interleaved, ratio, run_measurement, table
from torch import Tensor, nn

from polyhead import ModelConfig
from polyhead.cache.factory import make_cache
from polyhead.config.recipe import TrainConfig
from polyhead.core.choice import Choice
from polyhead.cost.flops import count_forward, update_flops_factor
from polyhead.cost.memory import model_bytes
from polyhead.cost.workload import BatchShape
from polyhead.models import CausalLM, build
from polyhead.nn.device import place_batch, resolve_device
from polyhead.nn.loss import cross_entropy
from polyhead.nn.positions import Positions
from polyhead.train.loop import train_step
from polyhead.train.precision import autocast, compile_model, resolve_precision, use_tf32
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.train_state import TrainState

PEAKS = {"H100": (989.0, 3350.0), "H200": (989.0, 4800.0), "A100": (312.0, 2039.0), "L40S": (362.0, 864.0)}
"""Dense TFLOPS in bf16 and GB/s of the makers' data sheets (SXM, 80 GB of the A100), by part of the name."""


def _add_sizes(parser: argparse.ArgumentParser, rows: int, length: int) -> None:
    parser.add_argument("--d-model", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--vocab-size", type=int, default=50304)
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--length", type=int, default=length)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--peak-tflops", type=float, help="of the device in bf16; known for " + ", ".join(PEAKS)
    )
    parser.add_argument("--bandwidth", type=float, help="GB/s of the device's memory")


def _describe(options: argparse.Namespace, device: torch.device) -> tuple[float | None, float | None]:
    """Print the device; its peak and bandwidth, None if unknown."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    known = next((peaks for part, peaks in PEAKS.items() if part in name), (None, None))
    peak, bandwidth = options.peak_tflops or known[0], options.bandwidth or known[1]
    print(f"{name}, {peak or '?'} TFLOPS, {bandwidth or '?'} GB/s, torch {torch.__version__}")
    return peak, bandwidth


def _config(options: argparse.Namespace, **parts: Any) -> ModelConfig:
    sizes = {"d_model": options.d_model, "n_layers": options.layers, "n_heads": options.heads}
    return ModelConfig.model_validate(
        {"kind": "decoder", "vocab_size": options.vocab_size, "max_len": options.length, "dropout": 0.0,
         "d_ff": 4 * options.d_model, "norm_first": True, "scale_embedding": False, "init": "normal"}
        | sizes | parts
    )  # fmt: skip


def _finished(device: torch.device, run: Callable[[], object]) -> Callable[[], None]:
    """``run``, and a wait for what it queued."""

    def whole() -> None:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return whole


class PlainModel(nn.Module):
    """The same sizes from torch's own layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            config.d_model, config.n_heads, config.d_ff or 0, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.token = nn.Embedding(config.vocab_size, config.d_model)
        self.position = nn.Embedding(config.max_len, config.d_model)
        self.layers = nn.TransformerEncoder(
            layer, config.n_layers, nn.LayerNorm(config.d_model), enable_nested_tensor=False
        )
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """(B, T) twice -> the mean loss."""
        x = self.token(tokens) + self.position.weight[: tokens.size(1)]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1), device=x.device)
        logits = F.linear(self.layers(x, mask, is_causal=True), self.token.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def _load_nanogpt(file: Path, config: ModelConfig) -> nn.Module:
    """GPT of nanoGPT's model.py, with the same sizes."""
    spec = importlib.util.spec_from_file_location("nanogpt", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sizes = {"n_layer": config.n_layers, "n_head": config.n_heads, "n_embd": config.d_model, "dropout": 0.0}
    gpt: nn.Module = module.GPT(
        module.GPTConfig(block_size=config.max_len, vocab_size=config.vocab_size, **sizes)
    )
    return gpt


class Rows:
    """A task of the training loop: rows of random tokens, each one text or packed documents."""

    def __init__(self, options: argparse.Namespace) -> None:
        shape = options.rows, options.length + 1
        self.cells = torch.randint(0, options.vocab_size, shape, generator=torch.Generator().manual_seed(0))
        pos = torch.arange(options.length) % (options.documents or options.length)
        self.pos = pos.repeat(options.rows, 1) if options.documents else None

    def batch(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.cells[:, :-1], self.cells[:, 1:], self.pos

    def count_labels(self, batch: tuple[Tensor, Tensor, Tensor | None]) -> int:
        return batch[1].numel()

    def loss(self, model: CausalLM, batch: tuple[Tensor, Tensor, Tensor | None]) -> object:
        (tokens, labels, pos), (_, known, numbers) = place_batch(model, batch)
        features = model.features(tokens, Positions.of(pos, numbers))
        return cross_entropy(features, model.head, labels, host=known)


def _plain_step(
    module: nn.Module, loss: Callable[[], Tensor], inside: Callable[[], Any]
) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with inside():
            value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def train(parser: argparse.ArgumentParser) -> None:
    """Training steps: Polyhead, a plain torch model and nanoGPT in turns, with the share of the peak (MFU).

    Operations are the products of the model, forward and backward, counted by `polyhead estimate`. With
    `--documents N` Polyhead's rows are packed with documents of N tokens, which do not see each other, and
    the operations are those of the documents; the other systems compute whole rows.

    ./dev bench gpu train --nanogpt nanoGPT/model.py
    ./dev bench gpu train --device cpu --d-model 64 --layers 2 --heads 2 --vocab-size 100 --length 32 --rows 2
    """
    _add_sizes(parser, rows=8, length=2048)
    parser.add_argument("--nanogpt", type=Path, help="its model.py")
    parser.add_argument("--documents", type=int, help="tokens of a packed document")
    parser.add_argument("--compile", choices=("auto", "none", "layers"), default="auto")
    options = parser.parse_args()
    device = resolve_device(options.device)
    peak, _ = _describe(options, device)
    precision = resolve_precision("auto", device)
    use_tf32("auto", device)
    config = _config(options, position="learned", feed_forward="gelu")
    rows, model = Rows(options), build(config, seed=1).to(device)
    assert isinstance(model, CausalLM)
    is_compiled = compile_model(model, options.compile, device)
    settings = TrainConfig(steps=10**6, precision=precision, clip_norm=1.0, lr=1e-4)
    training = TrainState(model.train(), settings, config.d_model, 10**6)
    strategy, pending = parallelize(training, rows, settings), deque[Any]()

    def ours() -> None:
        training.progress.step += 1
        pending.append(train_step(strategy, [rows.batch()]))
        if len(pending) > strategy.delay:
            pending.popleft().read()

    tokens, labels = (x.to(device) for x in rows.batch()[:2])
    inside = lambda: autocast(precision, device)  # noqa: E731
    plain = PlainModel(config).to(device)
    steps = {"Polyhead": ours, "torch.nn": _plain_step(plain, lambda: plain(tokens, labels), inside)}
    if options.nanogpt:
        gpt = _load_nanogpt(options.nanogpt, config).to(device)
        gpt = torch.compile(gpt) if is_compiled else gpt  # type: ignore[assignment]
        steps["nanoGPT"] = _plain_step(gpt, lambda: gpt(tokens, labels)[1], inside)
    length = options.documents or options.length
    forward = count_forward(config, BatchShape(options.rows * options.length // length, length))
    flops = update_flops_factor(has_adapters=False) * sum(work.times * work.flops_each for work in forward)
    size = sum(p.numel() for p in model.parameters())
    print(f"{size:,} parameters, {options.rows} rows of {options.length}, {flops / 1e12:.3g} TFLOP a step, "
          f"{precision}, {'compiled' if is_compiled else 'not compiled'}")  # fmt: skip
    seconds = interleaved(
        {name: _finished(device, step) for name, step in steps.items()}, options.rounds, warmup=3
    )
    cells = [["system", "ms a step", "tokens/s", "TFLOPS", "MFU", "Polyhead is faster by"]]
    for name, times in seconds.items():
        each = statistics.median(times)
        rate = flops / each / 1e12
        share = f"{rate / peak:.1%}" if peak else "-"
        cells.append([name, f"{1e3 * each:.1f}", f"{tokens.numel() / each:,.0f}", f"{rate:.3g}", share,
                      f"{ratio(times, seconds['Polyhead']):.2f}"])  # fmt: skip
    print(table(cells))


@torch.inference_mode()
def decode(parser: argparse.ArgumentParser) -> None:
    """Decoding steps in bf16 with a preallocated cache: as they are and, on a GPU, as a CUDA graph.

    A step reads all weights and the cache once; the share is of the bandwidth that this would need.

    ./dev bench gpu decode --d-model 2048 --layers 16 --heads 32 --rows 1
    """
    _add_sizes(parser, rows=1, length=1024)
    options = parser.parse_args()
    device = resolve_device(options.device)
    _, bandwidth = _describe(options, device)
    config = _config(options, position="rope", feed_forward="gelu")
    model = build(config, seed=1).to(device, torch.bfloat16).eval()
    assert isinstance(model, CausalLM)
    cache = make_cache(Choice("static", preallocate=True), model.cache_shape, options.rows, options.length)
    tokens, pos = (torch.zeros(options.rows, 1, dtype=torch.int64, device=device) for _ in range(2))
    places = iter(range(10**9))

    def prepare() -> None:
        place = torch.full((options.rows, 1), next(places) % options.length)
        pos.copy_(place, non_blocking=True)
        cache.prepare_step(range(options.rows), place)

    def step() -> None:
        prepare()
        model.decode(tokens, pos, cache)

    steps = {"Polyhead": step}
    if device.type == "cuda":
        step()  # allocates what the graph reuses
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model.decode(tokens, pos, cache)

        def replay() -> None:
            prepare()
            graph.replay()

        steps["Polyhead, CUDA graph"] = replay
    nbytes = model_bytes(model) + cache.nbytes
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {options.rows} rows, cache of "
          f"{options.length}, {nbytes / 1e9:.3g} GB a step")  # fmt: skip
    seconds = interleaved(
        {name: _finished(device, one) for name, one in steps.items()}, options.rounds, warmup=3
    )
    cells = [["system", "ms a step", "tokens/s", "GB/s", "share of the bandwidth"]]
    for name, times in seconds.items():
        each = statistics.median(times)
        rate = nbytes / each / 1e9
        share = f"{rate / bandwidth:.1%}" if bandwidth else "-"
        cells.append([name, f"{1e3 * each:.2f}", f"{options.rows / each:,.0f}", f"{rate:,.1f}", share])
    print(table(cells))


if __name__ == "__main__":
    run_measurement(__doc__ or "", train, decode)
