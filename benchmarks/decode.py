"""Decoding: speed against other libraries, and what a step costs besides its model.

./dev bench decode NAME [...]    one of peers, overhead
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from _shared import apart, interleaved, ratio, run_measurement, table, twin
from torch import Tensor, nn

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.choice import Choice
from polyhead.generation.decoding.beam_search import beam_search, greedy_search
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.generate import generate
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.kernels.pack_model import linear_factory, pack_model
from polyhead.models import CausalLM, Seq2Seq, build, preset_config
from polyhead.nn.cache import Cache, CacheShape
from polyhead.nn.kv import EncoderMemory
from polyhead.run.load import LOAD_DTYPES
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

PAD, BOS, EOS = 0, 1, 2

Outputs = Callable[[], list[list[int]]]


def peers(parser: argparse.ArgumentParser) -> None:
    """Decoding with the same weights: Polyhead against Hugging Face generate, CTranslate2 and llama.cpp, in
    turns, a process each.

    A decoder of GPT-2 small's sizes (gpt2; gpt2-large is asked for by its name) and an encoder-decoder of
    base sizes (base), random weights, greedy and beam 5, batch 1 and 32. Every output has the same length, so
    only speed differs; the time is that of the whole call, what is read included.

    ./dev bench decode peers                                     all eight cases
    ./dev bench decode peers --models gpt2 --batches 1 --beams 1 one of them
    ./dev bench paging steps                               what a step costs with each cache

    CTranslate2 and llama.cpp take part where they are installed (pip install ctranslate2 llama-cpp-python);
    the latter with decoders, one text and one beam, in the file that `polyhead export --to gguf` writes.
    CTranslate2 runs with all threads in one worker, and with several threads also as one worker a thread.
    """
    parser.add_argument(
        "--models", nargs="+", choices=["gpt2", "gpt2-large", "base"], default=["gpt2", "base"]
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--given", type=int, default=26, help="tokens of each prompt or source")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--layers", type=int, help="layers (default: as many as the model has)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    for name, package in (("CTranslate2", "ctranslate2"), ("llama.cpp", "llama_cpp")):
        if find_spec(package) is None:
            options.systems = [system for system in options.systems if name not in system]
            print(f"{name} is not installed and takes no part\n")
    print(f"{options.given} tokens in, {options.new_tokens} out, {options.threads} threads, medians of "
          f"{options.rounds} interleaved rounds, "
          "a process each\n")  # fmt: skip
    rows = [
        [
            "model",
            "batch",
            "beam",
            "system",
            "tokens/s",
            "times Hugging Face fp32",
            "times Hugging Face bf16",
            "outputs as its fp32",
        ]
    ]
    for model, batch, beam in product(options.models, options.batches, options.beams):
        whole = model != "base" and (batch, beam) == (1, 1)
        systems = [
            name
            for name in options.systems
            if (whole or "llama.cpp" not in name) and (options.threads > 1 or "workers" not in name)
        ]
        given = vars(options) | {"systems": systems, "model": model, "batch": batch, "beam": beam}
        rows += case(argparse.Namespace(**given))
        print("\n".join(map(" | ".join, rows[-len(systems) :])), flush=True)
    print("\n" + table(rows))


def case(options: argparse.Namespace) -> list[list[str]]:
    """The rows of one model, batch and beam."""
    outputs, seconds = time_systems(options)
    tokens = options.batch * options.new_tokens
    rows = []
    for name, times in seconds.items():
        faster = [
            f"{ratio(seconds[peer], times):.2f}" if peer in seconds else "-"
            for peer in ("Hugging Face fp32", "Hugging Face bf16")
        ]
        wanted = outputs.get("Hugging Face fp32", outputs[name])
        same = sum(a == b for a, b in zip(outputs[name], wanted, strict=True))
        rows.append([options.model, str(options.batch), str(options.beam), name,
            f"{tokens / statistics.median(times):,.0f}", *faster,
                     f"{same} of {options.batch}"])  # fmt: skip
    return rows


def time_systems(
    options: argparse.Namespace,
) -> tuple[dict[str, list[list[int]]], dict[str, list[float]]]:
    """Outputs of each system, and the seconds of its calls, in turns."""
    with apart({name: SYSTEMS[name] for name in options.systems}, options) as calls:
        outputs: dict[str, list[list[int]]] = {name: call() for name, call in calls.items()}
        seconds = interleaved(calls, options.rounds, warmup=0)
    for name, rows in outputs.items():
        assert all(len(ids) == options.new_tokens for ids in rows), (
            f"{name} does not make {options.new_tokens} tokens a row"
        )
    return outputs, seconds


def prepare(options: argparse.Namespace) -> tuple[CausalLM | Seq2Seq, Tensor]:
    """The same weights and sources in every process."""
    torch.set_num_threads(options.threads)
    sizes = {} if options.layers is None else {"n_layers": options.layers, "n_decoder_layers": options.layers}
    model = build(
        preset_config(options.model, 10_000 if options.model == "base" else 50_257, **sizes), seed=1
    ).eval()
    assert isinstance(model, CausalLM | Seq2Seq)
    with torch.no_grad():  # CTranslate2's Marian begins with a vector of zeros instead
        model.head.weight[BOS] = 0
    torch.manual_seed(2)
    return model, torch.randint(5, model.config.vocab_size - 1, (options.batch, options.given))


def ours_of(options: argparse.Namespace, dtype: str) -> Outputs:
    """What one call of a Polyhead process does, as `polyhead translate` and `polyhead generate` do it."""
    return packed_decoder(options, dtype)[1]


def packed_decoder(options: argparse.Namespace, dtype: str) -> tuple[nn.Module, Outputs]:
    """The packed model of a Polyhead process, and one call of it."""
    tune_malloc()
    model, source = prepare(options)
    ready, n = pack_model(model.to(LOAD_DTYPES[dtype]), linear_factory(dtype)), options.new_tokens
    rules = {"bos_id": BOS, "eos_id": EOS, "max_new_tokens": [n] * len(source), "min_new_tokens": n}

    def decode() -> list[list[int]]:
        if options.beam == 1:
            return [found.tokens for found in greedy_search(ready, source, None, **rules)]  # type: ignore[arg-type]
        return [best[0].tokens for best in beam_search(ready, source, None, beam_size=options.beam, **rules)]  # type: ignore[arg-type]

    return ready, decode


def hugging_face_of(options: argparse.Namespace, dtype: torch.dtype) -> Outputs:
    """The same of generate()."""
    model, source = prepare(options)
    theirs, n = peer(model).eval().to(dtype), options.new_tokens
    start = 1 if isinstance(model, Seq2Seq) else source.size(1)

    def decode() -> list[list[int]]:
        with torch.inference_mode():
            found = theirs.generate(  # type: ignore[operator]
                input_ids=source, attention_mask=torch.ones_like(source), num_beams=options.beam,
                    do_sample=False, max_new_tokens=n,
                min_new_tokens=n,
            )  # fmt: skip
        ids: list[list[int]] = found[:, start:].tolist()
        return ids

    return decode


def ctranslate2_of(options: argparse.Namespace, precision: str, workers: int = 1) -> Outputs:
    """The same of CTranslate2, on Hugging Face's weights; ``workers`` share the texts and the threads."""
    import ctranslate2

    model, source = prepare(options)
    given, n = [[str(i) for i in row] for row in source.tolist()], options.new_tokens
    shared = {"beam_size": options.beam, "max_batch_size": -(-options.batch // workers)}
    threads = {"inter_threads": workers, "intra_threads": options.threads // workers}
    with tempfile.TemporaryDirectory() as folder:
        converter(peer(model), model.config.vocab_size).convert(folder, force=True)
        kind = ctranslate2.Translator if isinstance(model, Seq2Seq) else ctranslate2.Generator
        made = kind(folder, device="cpu", compute_type=precision, **threads)

    def decode() -> list[list[int]]:
        if isinstance(model, Seq2Seq):
            results = made.translate_batch(given, max_decoding_length=n, min_decoding_length=n, **shared)
            return [[int(token) for token in result.hypotheses[0]] for result in results]
        results = made.generate_batch(
            given, max_length=n, min_length=n, include_prompt_in_result=False, **shared
        )
        return [result.sequences_ids[0] for result in results]

    return decode


def llama_cpp_of(options: argparse.Namespace, dtype: str) -> Outputs:
    """The same of llama.cpp, one text at a time, on the file that is exported for it."""
    from llama_cpp import Llama

    from polyhead.export.gguf import GGUF_FILE, write_gguf

    model, source = prepare(options)
    run = Run(model, train_tokenizer(["a"], Choice("byte"), 261), GenerationConfig())
    with tempfile.TemporaryDirectory() as folder:
        write_gguf(run, Path(folder), dtype)
        made = Llama(
            f"{folder}/{GGUF_FILE}", n_ctx=options.given + options.new_tokens, n_threads=options.threads,
            n_threads_batch=options.threads, use_mmap=False, verbose=False,
        )  # fmt: skip

    def decode() -> list[list[int]]:
        made.reset()
        said = made.generate(source[0].tolist(), top_k=1, temp=0.0, repeat_penalty=1.0)
        return [list(islice(said, options.new_tokens))]

    return decode


def converter(theirs: nn.Module, vocab_size: int) -> Any:
    """CTranslate2's own converter, given a model instead of a directory; a token's text is its number."""
    from ctranslate2.converters import TransformersConverter

    class Numbers:
        """All that the converter asks of a tokenizer."""

        bos_token, eos_token, unk_token, pad_token = str(BOS), str(EOS), "3", str(PAD)
        added_tokens_encoder: dict[str, int] = {}  # noqa: RUF012

        def get_vocab(self) -> dict[str, int]:
            last = {"<pad>": vocab_size - 1}  # of Marian it takes the last one off
            return {str(i): i for i in range(vocab_size - 1)} | last

    class Given(TransformersConverter):
        """Of a model in memory."""

        def load_model(self, model_class: Any, path: str, **options: Any) -> nn.Module:
            return theirs

        def load_tokenizer(self, tokenizer_class: Any, path: str, **options: Any) -> Numbers:
            return Numbers()

    folder = tempfile.mkdtemp()
    theirs.config.save_pretrained(folder)  # type: ignore[operator, union-attr]
    return Given(folder)


def peer(model: CausalLM | Seq2Seq) -> nn.Module:
    """Hugging Face's model of the same equations with the same weights."""
    if isinstance(model, Seq2Seq):
        return twin(model, PAD, BOS, EOS)
    from transformers import GPT2Config, GPT2LMHeadModel

    from polyhead.hf.families.gpt2 import GPT2_FAMILY
    from polyhead.hf.family import to_hf
    from polyhead.nn.state import named_state

    c = model.config
    theirs = GPT2LMHeadModel(GPT2Config(
        vocab_size=c.vocab_size, n_positions=c.max_len, n_embd=c.d_model, n_layer=c.n_layers,
        n_head=c.n_heads,
        bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD,
    ))  # fmt: skip
    given = to_hf(GPT2_FAMILY.weight_map, named_state(model), c)
    theirs.load_state_dict(given | {"lm_head.weight": given["transformer.wte.weight"]})
    return theirs


def hugging_face_fp32(options: argparse.Namespace) -> Outputs:
    """generate() of transformers."""
    return hugging_face_of(options, torch.float32)


def hugging_face_bf16(options: argparse.Namespace) -> Outputs:
    """The same with bf16 weights."""
    return hugging_face_of(options, torch.bfloat16)


def polyhead_fp32(options: argparse.Namespace) -> Outputs:
    """As `polyhead translate` and `polyhead generate`."""
    return ours_of(options, "fp32")


def polyhead_bf16(options: argparse.Namespace) -> Outputs:
    """As the same with `--dtype bf16`."""
    return ours_of(options, "bf16")


def polyhead_int8(options: argparse.Namespace) -> Outputs:
    """As the same with `--dtype int8`."""
    return ours_of(options, "int8")


def polyhead_int4(options: argparse.Namespace) -> Outputs:
    """As the same with `--dtype int4`."""
    return ours_of(options, "int4")


def ctranslate2_fp32(options: argparse.Namespace) -> Outputs:
    """CTranslate2 with fp32 weights."""
    return ctranslate2_of(options, "float32")


def ctranslate2_int8(options: argparse.Namespace) -> Outputs:
    """CTranslate2 with int8 weights, the rest in fp32."""
    return ctranslate2_of(options, "int8")


def ctranslate2_workers_fp32(options: argparse.Namespace) -> Outputs:
    """CTranslate2 with fp32 weights and a worker for each thread."""
    return ctranslate2_of(options, "float32", options.threads)


def ctranslate2_workers_int8(options: argparse.Namespace) -> Outputs:
    """CTranslate2 with int8 weights and a worker for each thread."""
    return ctranslate2_of(options, "int8", options.threads)


def llama_cpp_fp32(options: argparse.Namespace) -> Outputs:
    """llama.cpp with fp32 weights."""
    return llama_cpp_of(options, "fp32")


def llama_cpp_int8(options: argparse.Namespace) -> Outputs:
    """llama.cpp with weights of 8 bits (Q8_0)."""
    return llama_cpp_of(options, "int8")


def llama_cpp_int4(options: argparse.Namespace) -> Outputs:
    """llama.cpp with weights of 4 bits (Q4_0), those of tokens of 8."""
    return llama_cpp_of(options, "int4")


SYSTEMS = {
    "Hugging Face fp32": hugging_face_fp32,
    "Hugging Face bf16": hugging_face_bf16,
    "Polyhead fp32": polyhead_fp32,
    "Polyhead bf16": polyhead_bf16,
    "Polyhead int8": polyhead_int8,
    "Polyhead int4": polyhead_int4,
    "CTranslate2 fp32": ctranslate2_fp32,
    "CTranslate2 int8": ctranslate2_int8,
    "CTranslate2 workers fp32": ctranslate2_workers_fp32,
    "CTranslate2 workers int8": ctranslate2_workers_int8,
    "llama.cpp fp32": llama_cpp_fp32,
    "llama.cpp int8": llama_cpp_int8,
    "llama.cpp int4": llama_cpp_int4,
}


PROMPT, NO_EOS = [3] * 4, 0


class Nothing:
    """A decoder that reads nothing, and whose logits were made before; it never ends a text."""

    training = False
    encode = decode_greedy = None

    def __init__(self, vocab_size: int, n_layers: int, most: int) -> None:
        self.vocab_size = vocab_size
        self.cache_shape = CacheShape(n_layers, 8, 32, 32, torch.float32, torch.device("cpu"))
        self.logits = 3 * torch.randn(most, 1, vocab_size, generator=torch.Generator().manual_seed(1))
        self.logits[:, :, NO_EOS] = -100

    def decode_features(
        self, tokens: Tensor, pos: Tensor, cache: Cache | None, memory: list[EncoderMemory] | None
    ) -> Tensor:
        return torch.zeros(*tokens.shape, 1)

    def head(self, features: Tensor) -> Tensor:
        return self.logits[: len(features), 0]

    def decode(
        self, tokens: Tensor, pos: Tensor, cache: Cache | None, memory: list[EncoderMemory] | None
    ) -> Tensor:
        return self.logits[: len(tokens)]


def overhead(parser: argparse.ArgumentParser) -> None:
    """What a step of decoding costs besides its model: the same calls as ever, of a model that does nothing.

    ./dev bench decode overhead                       every rule, 1 and 16 rows
    ./dev bench decode overhead --caches paged        with another cache
    ./dev bench decode overhead --vocabulary 50257    more tokens to choose from

    Counted are the cache's bookkeeping, the choice of the next tokens from random logits, and the engine, not
    the reading of the
    tokens: processor time of one thread, a whole call over its steps.
    """
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--caches", nargs="+", default=["static"])
    parser.add_argument("--rules", nargs="+", choices=list(RULES), default=list(RULES))
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--layers", type=int, default=4, help="of the cache, 8 heads of 32 each")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tune_malloc()
    model = Nothing(options.vocabulary, options.layers, 5 * max(options.batches))
    cases = list(product(options.rules, options.caches))
    calls = {
        f"{rule}, {cache}, {batch}": partial(RULES[rule], model, batch, options.new_tokens, Choice(cache))
        for (rule, cache), batch in product(cases, options.batches)
    }
    seconds = interleaved(calls, options.rounds, clock=time.process_time)
    rows = [["rule", "cache", *(f"µs, {batch} row{'s' * (batch > 1)}" for batch in options.batches)]]
    for rule, cache in cases:
        times = [statistics.median(seconds[f"{rule}, {cache}, {batch}"]) for batch in options.batches]
        rows.append([rule, cache, *(f"{1e6 * whole / options.new_tokens:,.0f}" for whole in times)])
    print(table(rows))


def search_texts(beam_size: int, model: Nothing, batch: int, steps: int, cache: Choice) -> object:
    """The likeliest texts, as `polyhead translate` finds them."""
    prompts, limits = torch.tensor([PROMPT] * batch), [steps] * batch
    if beam_size == 1:
        return greedy_search(model, prompts, None, eos_id=NO_EOS, max_new_tokens=limits, cache=cache)
    return beam_search(
        model, prompts, None, eos_id=NO_EOS, beam_size=beam_size, max_new_tokens=limits, cache=cache
    )


def draw_texts(sampling: Sampling, model: Nothing, batch: int, steps: int, cache: Choice) -> object:
    """Texts that are draw_texts, as `polyhead generate` draws them."""
    return list(
        generate(model, [PROMPT] * batch, sampling=sampling, eos_id=NO_EOS, max_new_tokens=steps, cache=cache)
    )


Call = Callable[[Nothing, int, int, Choice], object]

RULES: dict[str, Call] = {
    "greedy": partial(search_texts, 1),
    "temperature 0.8": partial(draw_texts, Sampling(0.8)),
    "temperature 0.8, top-k 50, top-p 0.95": partial(draw_texts, Sampling(0.8, 50, 0.95)),
    "beam 5": partial(search_texts, 5),
}


if __name__ == "__main__":
    run_measurement(__doc__ or "", peers, overhead)
