"""What is exported beside the run it was made from: greedy decoding by Polyhead, onnxruntime and CTranslate2,
taking turns.

A language model and a translator, random weights; each system in a process of its own. Every output has the
same length, so only speed differs; the time is that of the whole call, what is read included, by the clock on
the wall or, where other work is going on, that of the processor (``--clock cpu``, which adds the threads up).
onnxruntime is driven by the loop of docs/export.md.
Random weights leave the first and second token close together, so rounded ones take other turns soon: how
  many of the first
tokens agree says little of trained models.

./dev bench export                              both models, batch 1 and 16
./dev bench export --models language --layers 2 --batches 1
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _shared import apart, ratio, table

from polyhead import Choice
from polyhead.config.model import ModelConfig
from polyhead.generation.decoding.beam_search import greedy_search
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.kernels.pack_model import linear_factory, pack_model
from polyhead.models import CausalLM, Seq2Seq, build
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

Outputs = Callable[[], list[list[int]]]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
SIZES = {"d_model": 256, "n_heads": 4, "n_layers": 6, "vocab_size": 8000, "max_len": 256}
MODELS = {
    "language": {
        "kind": "decoder", "position": "rope", "norm": "rmsnorm", "norm_first": True,
        "feed_forward": "swiglu",
        "d_ff": 684, "scale_embedding": False,
    },
    "translation": {"kind": "encoder-decoder"},
}  # fmt: skip


def main() -> None:
    """Parse, export once, measure case after case, print a table of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--layers", type=int, default=SIZES["n_layers"])
    parser.add_argument("--given", type=int, default=26, help="tokens of each prompt or source")
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    options = parser.parse_args()
    print(f"{options.given} tokens in, {options.new_tokens} out, {options.threads} threads, medians of "
          f"{options.rounds} interleaved rounds, "
          f"a process each, {options.clock} clock\n")  # fmt: skip
    rows = [["model", "batch", "system", "tokens/s", "times Polyhead fp32", "first tokens as its"]]
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            export(argparse.Namespace(**vars(options), model=model, folder=folder))
        for model, batch in product(options.models, options.batches):
            rows += case(argparse.Namespace(**vars(options), model=model, batch=batch, folder=folder))
            print("\n".join(map(" | ".join, rows[-len(options.systems) :])), flush=True)
    print("\n" + table(rows))


def made(options: argparse.Namespace) -> tuple[CausalLM | Seq2Seq, Tokenizer]:
    """The same weights in every process."""
    torch.set_num_threads(options.threads)
    config = ModelConfig.model_validate(SIZES | MODELS[options.model] | {"n_layers": options.layers})
    model = build(config, seed=1).eval()
    assert isinstance(model, CausalLM | Seq2Seq)
    return model, train_tokenizer(["a"], Choice("byte"), 300)


def export(options: argparse.Namespace) -> None:
    """All files of a model, each in a directory of its name."""
    from polyhead.export import ctranslate2, onnx

    for dtype in ("fp32", "int8"):
        places = [Path(options.folder, f"{options.model}-{to}-{dtype}") for to in ("onnx", "ct2")]
        for place in places:
            place.mkdir()
        if any("onnxruntime" in name and name.endswith(dtype) for name in options.systems):
            onnx.write_onnx(made(options)[0], places[0], dtype)
        if any("CTranslate2" in name and name.endswith(dtype) for name in options.systems):
            ctranslate2.write_ct2(*made(options), places[1], dtype)


def case(options: argparse.Namespace) -> list[list[str]]:
    """The rows of one model and batch."""
    seconds: dict[str, list[float]] = {name: [] for name in options.systems}
    with apart({name: partial(timed, name) for name in options.systems}, options) as calls:
        outputs = {name: call()[0] for name, call in calls.items()}
        for _ in range(options.rounds):
            for name, call in calls.items():
                seconds[name].append(call()[1])
    first = options.systems[0]
    rows = []
    for name, times in seconds.items():
        assert all(len(ids) == options.new_tokens for ids in outputs[name]), f"{name} made too few tokens"
        same = [
            next((i for i, (a, b) in enumerate(zip(*pair, strict=True)) if a != b), options.new_tokens)
            for pair in zip(outputs[name], outputs[first], strict=True)
        ]
        tokens = options.batch * options.new_tokens
        rows.append([options.model, str(options.batch), name, f"{tokens / statistics.median(times):,.0f}",
                     f"{ratio(seconds[first], times):.2f}", f"{statistics.mean(same):.0f} of "
                         f"{options.new_tokens}"])  # fmt: skip
    return rows


def timed(name: str, options: argparse.Namespace) -> Callable[[], tuple[list[list[int]], float]]:
    """What a system says, and in how many seconds."""
    decode, clock = SYSTEMS[name](options), CLOCKS[options.clock]

    def call() -> tuple[list[list[int]], float]:
        start = clock()
        said = decode()
        return said, clock() - start

    return call


def given(options: argparse.Namespace) -> torch.Tensor:
    """The same prompts or sources in every process."""
    torch.manual_seed(2)
    return torch.randint(5, SIZES["vocab_size"], (options.batch, options.given))


def ours(options: argparse.Namespace, dtype: str) -> Outputs:
    """As `polyhead generate` and `polyhead translate`."""
    tune_malloc()
    model, tokenizer = made(options)
    ready, source, n = pack_model(model, linear_factory(dtype)), given(options), options.new_tokens
    rules = {"eos_id": tokenizer.eos_id, "max_new_tokens": [n] * len(source), "min_new_tokens": n}

    def decode() -> list[list[int]]:
        found = greedy_search(ready, source, None, bos_id=tokenizer.bos_id, **rules)  # type: ignore[arg-type]
        return [hypothesis.tokens for hypothesis in found]

    return decode


def onnxruntime_of(options: argparse.Namespace, dtype: str) -> Outputs:
    """The loop of docs/export.md, for a batch."""
    import onnxruntime

    place, tokenizer = Path(options.folder, f"{options.model}-onnx-{dtype}"), made(options)[1]
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = options.threads, 1

    def opened(name: str) -> Any:
        session = onnxruntime.InferenceSession(place / f"{name}.onnx", settings)
        names = [output.name for output in session.get_outputs()]
        return session, lambda **feed: dict(zip(names, session.run(None, feed), strict=True))

    crossing = options.model == "translation"
    session, ask = opened("decoder_model" if crossing else "model")
    read = opened("encoder_model")[1] if crossing else None
    source = given(options).numpy()
    shapes = {x.name: x.shape for x in session.get_inputs() if "past" in x.name and "encoder" not in x.name}
    empty = {
        name: np.zeros((options.batch, heads, 0, width), np.float32)
        for name, (_, heads, _, width) in shapes.items()
    }

    def remembered(found: dict[str, Any]) -> dict[str, Any]:
        return {
            name.replace("present", "past_key_values"): x
            for name, x in found.items()
            if name.startswith("present")
        }

    def decode() -> list[list[int]]:
        mask, past, said = np.ones_like(source), dict(empty), []
        tokens = source
        if read is not None:
            past |= remembered(read(input_ids=source, attention_mask=mask)) | {"encoder_attention_mask": mask}
            tokens = np.full((options.batch, 1), tokenizer.bos_id)
        while len(said) < options.new_tokens:
            where = {"attention_mask": mask, "position_ids": mask.cumsum(1)[:, -tokens.shape[1] :] - 1}
            found = ask(input_ids=tokens, **past, **({} if crossing else where))
            past |= remembered(found)
            logits = found["logits"][:, -1]
            logits[:, tokenizer.eos_id] = -np.inf
            tokens = logits.argmax(-1)[:, None]
            said.append(tokens[:, 0])
            mask = mask if crossing else np.concatenate([mask, np.ones_like(tokens)], 1)
        found_ids: list[list[int]] = np.stack(said, 1).tolist()
        return found_ids

    return decode


def ctranslate2_of(options: argparse.Namespace, dtype: str) -> Outputs:
    """translate_batch and generate_batch."""
    import ctranslate2

    place, source = Path(options.folder, f"{options.model}-ct2-{dtype}"), given(options).tolist()
    file = "shared_vocabulary.json" if options.model == "translation" else "vocabulary.json"
    names = json.loads((place / file).read_text())
    ids, words, n = (
        {name: i for i, name in enumerate(names)},
        [[names[i] for i in row] for row in source],
        options.new_tokens,
    )
    kind = ctranslate2.Translator if options.model == "translation" else ctranslate2.Generator
    kinds = {"fp32": "float32", "int8": "int8"}
    opened = kind(str(place), compute_type=kinds[dtype], intra_threads=options.threads)

    def decode() -> list[list[int]]:
        if options.model == "translation":
            results = opened.translate_batch(
                words, beam_size=1, max_decoding_length=n, min_decoding_length=n, max_batch_size=0
            )
            return [[ids[word] for word in result.hypotheses[0]] for result in results]
        results = opened.generate_batch(words, max_length=n, min_length=n, include_prompt_in_result=False)
        return [result.sequences_ids[0] for result in results]

    return decode


def polyhead_fp32(options: argparse.Namespace) -> Outputs:
    """Polyhead, weights packed."""
    return ours(options, "fp32")


def polyhead_int8(options: argparse.Namespace) -> Outputs:
    """As with `--dtype int8`."""
    return ours(options, "int8")


def onnx_fp32(options: argparse.Namespace) -> Outputs:
    """`--to onnx`."""
    return onnxruntime_of(options, "fp32")


def onnx_int8(options: argparse.Namespace) -> Outputs:
    """`--to onnx --dtype int8`."""
    return onnxruntime_of(options, "int8")


def ct2_fp32(options: argparse.Namespace) -> Outputs:
    """`--to ctranslate2`."""
    return ctranslate2_of(options, "fp32")


def ct2_int8(options: argparse.Namespace) -> Outputs:
    """`--to ctranslate2 --dtype int8`."""
    return ctranslate2_of(options, "int8")


SYSTEMS = {
    "Polyhead fp32": polyhead_fp32,
    "Polyhead int8": polyhead_int8,
    "onnxruntime fp32": onnx_fp32,
    "onnxruntime int8": onnx_int8,
    "CTranslate2 fp32": ct2_fp32,
    "CTranslate2 int8": ct2_int8,
}

if __name__ == "__main__":
    main()
