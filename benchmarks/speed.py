"""Speed beside the fastest peers: training and decoding, with the limits of the processor.

./dev bench speed NAME [...]    one of tables, memory
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import torch
from _roofline import Roofline
from _shared import PEAK_BYTES, apart, ratio, run_measurement, table
from _shared import memory as process_memory
from _train_steps import (
    ANCHOR,
    OURS,
    PEERS,
    Speed,
    add_options,
    our_step,
    peers_of,
    shape_of,
    time_contestants,
)
from _workloads import (
    Workload,
    corpus_workload,
    language_workload,
    pair_workload,
    text_workload,
    translator_config,
)
from decode import packed_decoder, time_systems
from torch import Tensor, nn

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.cost.decoding import estimate_decoding_memory, token_flops
from polyhead.cost.fake_tensors import fake_mode, fake_model
from polyhead.cost.flops import count_forward
from polyhead.cost.memory import estimate_training_memory, model_bytes
from polyhead.cost.workload import BatchShape
from polyhead.kernels.build_extension import load_kernels
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.models import CausalLM, Seq2Seq, build, preset_config

WEIGHT_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 4.25 / 8}
POLYHEAD = tuple(f"Polyhead {precision}" for precision in WEIGHT_BYTES)
CTRANSLATE2 = tuple(f"CTranslate2 {kind}" for kind in ("fp32", "workers fp32", "int8", "workers int8"))
LLAMA_CPP = ("llama.cpp int8", "llama.cpp int4")


START, END = "<!-- ./dev bench speed tables -->", "<!-- end of the tables -->"
Report = dict[str, dict[str, dict[str, str]]]
"""Cells by table, row and column."""


class Training(NamedTuple):
    """A row of the table of training."""

    title: str
    workload: Callable[[argparse.Namespace], Workload]
    rounds: int
    steps: int  # of a turn


class Decoding(NamedTuple):
    """A row of the table of decoding."""

    title: str
    model: str
    batch: int
    beam: int


TEXT_BATCHES = 12
TRAINING = {
    "tiny": Training(
        "tiny: 4 + 4 layers, d 128, V 10k, 100 pairs of 32",
        lambda options: pair_workload("tiny", 10_000, 100, 32, options.layers), 7, 1,
    ),
    "base": Training(
        "base: 6 + 6 layers, d 512, V 32k, 64 pairs of 32",
        lambda options: pair_workload("base", 32_000, 64, 32, options.layers), 3, 1,
    ),
    "nanogpt": Training(
        "nanoGPT for CPUs: 4 layers, d 128, V 65, 12 rows of 64",
        lambda options: language_workload(
            {"d_model": 128, "n_layers": 4, "n_heads": 4}, 65, 12, 64, options.layers
        ), 7, 20,
    ),
    "gpt2": Training(
        "GPT-2 small: 12 layers, d 768, V 50,304, 2 rows of 512",
        lambda options: language_workload(
            {"d_model": 768, "n_layers": 12, "n_heads": 12}, 50_304, 2, 512, options.layers
        ), 3, 1,
    ),
    "demo": Training(
        "real text, the demo's: 3 + 3 layers, d 128, V 500, batches of 2,048 tokens",
        lambda options: corpus_workload(
            None, translator_config("tiny", 500, options.layers or 3), 2048, TEXT_BATCHES
        ), 3, TEXT_BATCHES,
    ),
    "multi30k": Training(
        "real text, Multi30k: tiny with V 10k, batches of 2,048 tokens",
        lambda options: corpus_workload(
            [options.data / "multi30k/train.en", options.data / "multi30k/train.de"],
            translator_config("tiny", 10_000, options.layers), 2048, TEXT_BATCHES,
        ), 3, TEXT_BATCHES,
    ),
    "shakespeare": Training(
        "real text, tinyshakespeare with documents: nanoGPT for CPUs, 12 rows of 64",
        lambda options: text_workload(
            (options.data / "tinyshakespeare/input.txt").read_text(encoding="utf-8"),
            rows=12, length=64, has_documents=True, layers=options.layers,
        ), 7, 20,
    ),
}  # fmt: skip
REAL_TEXT = ("demo", "multi30k", "shakespeare")
"""Rows of real text; that of the demo is embedded, that of the others comes from --data."""
DECODING = {
    "base-1": Decoding("base, 1 text, greedy", "base", 1, 1),
    "gpt2-1": Decoding("GPT-2 small, 1 text, greedy", "gpt2", 1, 1),
    "base-32": Decoding("base, 32 texts, greedy", "base", 32, 1),
    "base-32-beam": Decoding("base, 32 texts, beam 5", "base", 32, 5),
}


def tables(parser: argparse.ArgumentParser) -> None:
    """Training and decoding beside the fastest setting of each peer, and shares of the processor's limits.

    ./dev bench speed tables                                 all rows; an hour with torch.compile
    ./dev bench speed tables --training gpt2 --decoding      one row of training, none of decoding
    ./dev bench speed tables --decoding --rounds 0           compile only: the next call starts faster
    ./dev bench speed tables --training tiny --json rows.json   one row, printed with those of earlier calls
    ./dev bench speed tables --training --decoding --json rows.json --into docs/results.md   no measurement

    Training: labels a second of whole steps (forward, loss, backward, clipping, AdamW), with random batches
    without padding and, in the rows of real text, with batches of an epoch, whose shapes change; Polyhead's
    steps are those of its training loop. Decoding: new tokens a second of whole
    calls, 26 tokens in, 32 out. A share of the limit is the time that the operations, or the reads of
    weights, need at the measured peak over the time that they take. CTranslate2 takes part where it is
    installed, and so does llama.cpp with language models (pip install llama-cpp-python, which compiles it).
    """
    add_options(parser, rounds=None, steps=None)
    parser.add_argument("--training", nargs="*", choices=list(TRAINING), default=list(TRAINING))
    parser.add_argument("--decoding", nargs="*", choices=list(DECODING), default=list(DECODING))
    parser.add_argument("--data", type=Path, help="folder with multi30k and tinyshakespeare, for real text")
    parser.add_argument("--layers", type=int, help="of each stack (default: as many as the model has)")
    parser.add_argument("--given", type=int, default=26, help="tokens of each prompt or source")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--json", type=Path, help="keeps rows; those of earlier calls are printed too")
    parser.add_argument("--into", type=Path, help="page whose tables are replaced, between two comments")
    options = parser.parse_args()
    report: Report = {part: {} for part in ("training", "contestants", "decoding", "limits", "memory")}
    if options.json and options.json.exists():
        report |= json.loads(options.json.read_text(encoding="utf-8"))
    if options.training or (options.decoding and options.rounds != 0):
        measure_rows(report, options)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    text = format_report(report)
    print("\n" + text)
    if options.into:
        page = options.into.read_text(encoding="utf-8")
        before, rest = page.split(START)
        after = rest.split(END)[1]
        options.into.write_text(f"{before}{START}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def memory(parser: argparse.ArgumentParser) -> None:
    """Estimated and measured memory of the rows of `tables`: training in fp32, decoding in int8.

    ./dev bench speed memory                     all rows
    ./dev bench speed memory nanogpt gpt2-1      two of them

    The measured bytes are those of tensors that exist at once, as torch's allocator counts them, with weights
    and optimizer: of the second step or call, in one thread. The process is its peak beyond the imports, with
    memory that the allocator cannot reuse; of decoding after its weights are packed.
    """
    known = [*(name for name in TRAINING if name not in REAL_TEXT), *DECODING]
    parser.add_argument("rows", nargs="*", default=known)
    rows = [["", "estimate, MB", "measured", "estimate / measured", "process", "process / estimate"]]
    for name in parser.parse_args().rows:
        estimated = estimate_bytes(name)
        with apart({name: watch_memory}, name) as calls:
            tensors, process = calls[name]()
        cells = [f"{x / 1e6:,.1f}" for x in (estimated, tensors, process)]
        title = (TRAINING.get(name) or DECODING[name]).title
        rows.append([title, *cells[:2], f"{estimated / tensors:.3f}", cells[2], f"{process / estimated:.2f}"])
        print(" | ".join(rows[-1]), flush=True)
    print("\n" + table(rows))


def estimate_bytes(name: str) -> int:
    """The bytes that `polyhead estimate` predicts for a row."""
    if name in TRAINING:
        workload = TRAINING[name].workload(argparse.Namespace(layers=None))
        shape = shape_of(workload.batches[0])
        return estimate_training_memory(workload.config, shape, Choice("adamw"), kernels=True).total or 0
    case = decoding_case(name)
    config = decoding_config(case)
    source = case.given if config.kind == "encoder-decoder" else 0
    batch = BatchShape(case.batch, 0 if source else case.given, source)
    return estimate_decoding_memory(config, "int8", batch, case.new_tokens, case.beam)


def decoding_case(name: str) -> argparse.Namespace:
    """The options of a row of decoding in one thread."""
    sizes = {"given": 26, "new_tokens": 32, "layers": None, "threads": 1}
    return argparse.Namespace(**sizes, **DECODING[name]._asdict())


def watch_memory(name: str) -> Callable[[], tuple[int, int]]:
    """A call that returns the bytes of tensors that exist at once, and of the process beyond the imports."""
    tune_malloc()
    torch.set_num_threads(1)
    load_kernels()
    before = process_memory("VmRSS")
    if name in TRAINING:
        workload = TRAINING[name].workload(argparse.Namespace(layers=None))
        model: nn.Module = build(workload.config, seed=1).train()
        step, batches = our_step(model, workload, "fp32"), iter(workload.batches)
        run: Callable[[], object] = lambda: step(next(batches))  # noqa: E731
        run()
        # two moments and a step number of each parameter
        held = model_bytes(model) + sum(2 * p.nbytes + 4 for p in model.parameters())
    else:
        model, run = packed_decoder(decoding_case(name), "int8")
        storages = {x.data_ptr(): x.nbytes for part in model.modules() for x in list_tensors(part)}
        held = sum(storages.values())

    def measure() -> tuple[int, int]:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        run()
        process = process_memory("VmHWM") - before
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as seen:
            run()
        events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
        changes = accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
        return held + max(changes), process

    return measure


def list_tensors(part: nn.Module) -> list[Tensor]:
    """The tensors of a packed module."""
    return [x for x in vars(part).values() if isinstance(x, Tensor)]


def measure_rows(report: Report, options: argparse.Namespace) -> None:
    """Measure the limits of the processor and the chosen rows, and put them into the report."""
    roofline = Roofline(options.threads)
    report["processor"] = {"": {"": roofline.describe()}}
    print(roofline.describe(), flush=True)
    for name in options.training:
        if name in REAL_TEXT[1:] and options.data is None:
            print(f"\n{name}: takes part with --data")
            continue
        speeds = time_training(TRAINING[name], options)
        if speeds:
            report["training"][name] = training_cells(TRAINING[name], speeds, options, roofline)
            report["contestants"][name] = {
                system: f"{speed.tokens_per_s:,.0f} ({speed.anchor_ratio:.2f})"
                for system, speed in speeds.items()
            }
            report["memory"][name] = memory_cells(speeds)
    for name in options.decoding if options.rounds != 0 else ():
        seconds = time_decoding(DECODING[name], options)
        report["decoding"][name] = decoding_cells(DECODING[name], seconds, options)
        report["limits"][name] = limit_cells(DECODING[name], seconds, options, roofline)
        report["memory"][name] = memory_cells(seconds)


def format_report(report: Report) -> str:
    """The processor, and the tables that have rows, as Markdown."""
    parts = [text for cells in report.get("processor", {}).values() for text in cells.values()]
    for part, title in (
        ("training", "training step, labels/s"),
        ("contestants", f"labels/s ({ANCHOR} is faster by)"),
        ("decoding", "decoding, new tokens/s"),
        ("limits", "decoding, share of the limit"),
        ("memory", "peak memory of a process, MB"),
    ):
        known: Mapping[str, Training | Decoding] = (
            TRAINING if part in ("training", "contestants") else DECODING
        )
        known = {**TRAINING, **DECODING} if part == "memory" else known
        rows = [(name, report[part][name]) for name in known if name in report[part]]
        columns = dict.fromkeys(column for _, cells in rows for column in cells)
        if part in ("contestants", "memory"):  # a row for each contestant
            grid = [[system, *(cells.get(system, "-") for _, cells in rows)] for system in columns]
            grid.insert(0, [title, *(name for name, _ in rows)])
        else:
            grid = [[known[name].title, *(cells.get(c, "-") for c in columns)] for name, cells in rows]
            grid.insert(0, [title, *columns])
        if rows:
            parts.append(table(grid))
    return "\n\n".join(parts)


def time_training(row: Training, options: argparse.Namespace) -> dict[str, Speed]:
    """The speed of every contestant of a row."""
    print(f"\n{row.title}", flush=True)
    changes = {
        "rounds": row.rounds if options.rounds is None else options.rounds,
        "steps": options.steps or row.steps,
    }
    workload = row.workload(options)
    speeds = time_contestants(
        workload, argparse.Namespace(**vars(options) | changes), peers_of(workload, options)
    )
    for name, speed in speeds.items():
        print(f"  {name}: {speed.tokens_per_s:,.0f} labels/s, {speed.anchor_ratio:.2f}", flush=True)
    return speeds


def training_cells(
    row: Training, speeds: dict[str, Speed], options: argparse.Namespace, roofline: Roofline
) -> dict[str, str]:
    """The cells of a row of training, with its fastest peer."""
    workload = row.workload(options)
    flops_of_label = workload.count_flops() / workload.labels
    peers = {name: speed for name, speed in speeds.items() if name not in OURS}
    eager = {name: speed for name, speed in peers.items() if name.endswith(" eager")}
    best = fastest(peers)
    return {
        **{f"{peer}, eager": rate_of(speeds, f"{peer} eager") for peer in PEERS},
        "fastest peer": f"{best}, {rate_of(peers, best)}" if best else "-",
        **{name: rate_of(speeds, name) for name in OURS},
        "fp32 over the fastest eager peer": over(eager, speeds["Polyhead fp32"]),
        f"{OURS[ANCHOR]} over the fastest peer": over(peers, speeds[ANCHOR]),
        **{
            f"share of the limit, {precision}": (
                f"{100 * flops_of_label * speeds[name].tokens_per_s / roofline.peak(precision):.0f} %"
            )
            for name, precision in OURS.items()
        },
    }


def fastest(speeds: dict[str, Speed]) -> str:
    """The name of the fastest contestant; "" of none."""
    return min(speeds, key=lambda name: speeds[name].anchor_ratio, default="")


def rate_of(speeds: dict[str, Speed], name: str) -> str:
    """The labels a second of a contestant, if it took part."""
    return f"{speeds[name].tokens_per_s:,.0f}" if name in speeds else "-"


def over(peers: dict[str, Speed], ours: Speed) -> str:
    """How many times as fast as the fastest peer we are."""
    return f"{peers[fastest(peers)].anchor_ratio / ours.anchor_ratio:.2f}" if peers else "-"


def memory_cells(systems: Iterable[str]) -> dict[str, str]:
    """The most memory of the process of each contestant of a row."""
    return {name: f"{PEAK_BYTES[name] / 1e6:,.0f}" for name in systems}


def decoding_options(row: Decoding, options: argparse.Namespace) -> argparse.Namespace:
    """The options of one case of `decode peers`."""
    systems = ["Hugging Face fp32"]
    if find_spec("ctranslate2") is not None:
        # one thread can be faster than two even for one text, which only one of the workers translates
        systems += [name for name in CTRANSLATE2 if options.threads > 1 or "workers" not in name]
    if row.model != "base" and find_spec("llama_cpp") is not None:
        systems += LLAMA_CPP
    changes = {"systems": [*systems, *POLYHEAD], "model": row.model, "batch": row.batch, "beam": row.beam}
    return argparse.Namespace(**vars(options) | changes | {"rounds": options.rounds or 7})


def time_decoding(row: Decoding, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of the calls of each system of a row."""
    print(f"\n{row.title}", flush=True)
    case = decoding_options(row, options)
    _, seconds = time_systems(case)
    for name, times in seconds.items():
        rate = row.batch * options.new_tokens / statistics.median(times)
        print(f"  {name}: {rate:,.0f} tokens/s", flush=True)
    return seconds


def decoding_cells(
    row: Decoding, seconds: dict[str, list[float]], options: argparse.Namespace
) -> dict[str, str]:
    """The cells of a row of decoding, beside the best setting of CTranslate2 and beside llama.cpp."""
    theirs = {system: statistics.median(seconds[system]) for system in CTRANSLATE2 if system in seconds}
    best = min(theirs, key=lambda system: theirs[system], default="")
    pairs = {
        "int8 over CTranslate2's best": (best, "Polyhead int8"),
        "int8 over llama.cpp": ("llama.cpp int8", "Polyhead int8"),
        "int4 over llama.cpp": ("llama.cpp int4", "Polyhead int4"),
    }
    gains = {
        title: f"{ratio(seconds[peer], seconds[ours]):.2f}" if peer in seconds else "-"
        for title, (peer, ours) in pairs.items()
    }
    tokens = row.batch * options.new_tokens
    rates = {system: f"{tokens / statistics.median(times):,.0f}" for system, times in seconds.items()}
    return rates | gains


def limit_cells(
    row: Decoding, seconds: dict[str, list[float]], options: argparse.Namespace, roofline: Roofline
) -> dict[str, str]:
    """Shares of the limit of each of our precisions."""
    case = decoding_options(row, options)
    return {
        system: f"{100 * least_seconds(case, precision, roofline) / statistics.median(seconds[system]):.0f} %"
        for system, precision in zip(POLYHEAD, WEIGHT_BYTES, strict=True)
    }


def least_seconds(case: argparse.Namespace, precision: str, roofline: Roofline) -> float:
    """The time of a call at the limit: the source or prompt, then each step's weights or operations."""
    config = decoding_config(case)
    is_pair, rows = config.kind == "encoder-decoder", case.batch * case.beam
    if is_pair:
        first = count_forward(config, BatchShape(case.batch, 1, source=case.given))
    else:
        first = count_forward(config, BatchShape(case.batch, case.given, label_count=case.batch))
    middle = case.new_tokens // 2 + (0 if is_pair else case.given)
    step = rows * token_flops(config, middle, case.given if is_pair else 0)
    layers, head = count_read_weights(config)
    nbytes = int(
        layers * WEIGHT_BYTES[precision] + head * max(1.0, WEIGHT_BYTES[precision])
    )  # 8 bits at least
    peak = roofline.peak("int8" if precision == "int4" else precision)
    each = max(step / peak, nbytes / roofline.bandwidth(nbytes))
    return sum(work.total for work in first) / peak + (case.new_tokens - 1) * each


def decoding_config(case: argparse.Namespace) -> ModelConfig:
    """The config that `decode peers` builds."""
    sizes = {} if case.layers is None else {"n_layers": case.layers, "n_decoder_layers": case.layers}
    return preset_config(case.model, 10_000 if case.model == "base" else 50_257, **sizes)


def count_read_weights(config: ModelConfig) -> tuple[int, int]:
    """Weights that a step of decoding reads: the decoder without what reads the source, and the head."""
    with fake_mode():
        model = fake_model(config)
    assert isinstance(model, Seq2Seq | CausalLM)
    stack = model.decoder if isinstance(model, Seq2Seq) else model.stack
    once = ("cross.k_proj", "cross.v_proj")
    layers = sum(p.numel() for name, p in stack.named_parameters() if not any(part in name for part in once))
    return layers, model.head.weight.numel()


if __name__ == "__main__":
    run_measurement(__doc__ or "", tables, memory)
