"""Translating with the same weights: Polyhead against Hugging Face generate, paired in one run.

python benchmarks/translate.py                 base sizes, random weights, batch 32, beam 4, 32 tokens out
python benchmarks/translate.py --run RUN --source FILE --reference FILE     a trained run: BLEU of each as well
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from peers import marian
from timing import apart, interleaved, ratio, table
from torch import Tensor, nn

import polyhead as ph
from polyhead.analysis.metrics import bleu
from polyhead.fast.memory import tune_memory
from polyhead.fast.pack import packed
from polyhead.generate.beam import beam_search
from polyhead.models import Seq2Seq, build, preset

PAD, BOS, EOS = 0, 1, 2


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="base", help="sizes (default: base)")
    parser.add_argument("--vocab-size", type=int, default=10000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--source-len", type=int, default=26)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tune-peers", action="store_true", help="give Hugging Face Polyhead's memory settings too")
    parser.add_argument("--run", type=Path, help="a trained run; needs --source and --reference")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--reference", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    (trained if options.run else equal_lengths)(options)


def equal_lengths(options: argparse.Namespace) -> None:
    """Random weights, the same for all; every output has the same length, so only speed differs."""
    systems = {
        "Hugging Face fp32": hugging_face_fp32,
        "Polyhead fp32, not packed": plain_fp32,
        "Polyhead fp32": polyhead_fp32,
        "Hugging Face bf16": hugging_face_bf16,
        "Polyhead bf16": polyhead_bf16,
    }
    with apart(systems, options) as calls:
        theirs = calls["Hugging Face fp32"]()
        same = sum(a == b for a, b in zip(calls["Polyhead fp32"](), theirs, strict=True))
        print(f"fp32 outputs equal to Hugging Face's: {same} of {options.batch}")
        seconds = interleaved(calls, options.rounds)
    tokens = options.batch * options.new_tokens
    rows = [["system", "tokens/s", "times Hugging Face fp32"]]
    for name, times in seconds.items():
        rows.append([name, f"{tokens / statistics.median(times):,.0f}", f"{ratio(seconds['Hugging Face fp32'], times):.2f}"])
    memory = ", Hugging Face with Polyhead's memory settings" if options.tune_peers else ""
    print(f"{options.preset}, batch {options.batch}, beam {options.beam}, {options.source_len} tokens in, {options.new_tokens} out, "
          f"{options.threads} threads, medians of {options.rounds} interleaved rounds, a process each{memory}")  # fmt: skip
    print(table(rows))


Outputs = Callable[[], list[list[int]]]


def hugging_face_fp32(options: argparse.Namespace) -> Outputs:
    """generate() of MarianMTModel."""
    return theirs_of(options, torch.float32)


def hugging_face_bf16(options: argparse.Namespace) -> Outputs:
    """The same with bf16 weights."""
    return theirs_of(options, torch.bfloat16)


def plain_fp32(options: argparse.Namespace) -> Outputs:
    """Beam search of Polyhead on the model as it was trained."""
    return ours_of(options, lambda model: model)


def polyhead_fp32(options: argparse.Namespace) -> Outputs:
    """The same with packed weights, as `polyhead translate` does it."""
    return ours_of(options, packed)


def polyhead_bf16(options: argparse.Namespace) -> Outputs:
    """As `polyhead translate --dtype bf16`."""
    return ours_of(options, lambda model: packed(model.bfloat16()))


def theirs_of(options: argparse.Namespace, dtype: torch.dtype) -> Outputs:
    """What one call of a Hugging Face process does."""
    if options.tune_peers:
        tune_memory()
    model, source = prepare(options)
    theirs, n = marian(model, PAD, BOS, EOS).eval().to(dtype), options.new_tokens
    return lambda: hugging_face(theirs, source, torch.ones_like(source), options.beam, n, n)


def ours_of(options: argparse.Namespace, change: Callable[[Seq2Seq], nn.Module]) -> Outputs:
    """What one call of a Polyhead process does."""
    tune_memory()  # as every verb of the command line does
    model, source = prepare(options)
    model, n = change(model), options.new_tokens

    def translate() -> list[list[int]]:
        found = beam_search(
            model, source, None, bos_id=BOS, eos_id=EOS, beam_size=options.beam, max_new_tokens=[n] * len(source),
            min_new_tokens=n,
        )  # fmt: skip
        return [best[0].tokens for best in found]

    return translate


def prepare(options: argparse.Namespace) -> tuple[Seq2Seq, Tensor]:
    """The same weights and sources in every process."""
    torch.set_num_threads(options.threads)
    model = build(preset(options.preset, options.vocab_size), seed=1).eval()
    torch.manual_seed(2)
    return model, torch.randint(5, options.vocab_size, (options.batch, options.source_len))


def trained(options: argparse.Namespace) -> None:
    """A trained run on real text: speed and BLEU together."""
    run, half = ph.load(options.run), ph.load(options.run)
    tokenizer = run.tokenizer
    theirs = marian(run.model, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id).eval()
    packed(run.model)
    packed(half.model.bfloat16())
    sources, references = (
        path.read_text(encoding="utf-8").strip("\n").split("\n")
        for path in (options.source, options.reference)
    )
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    encoded = [[*ids, tokenizer.eos_id] for ids in tokenizer.encode(sources)]
    batch_tokens = options.batch * options.beam * 26

    def theirs_do() -> list[str]:
        outputs = [""] * len(sources)
        for at in range(0, len(order), options.batch):
            rows = order[at : at + options.batch]
            longest = max(len(encoded[i]) for i in rows)
            source = torch.full((len(rows), longest), tokenizer.pad_id)
            for j, i in enumerate(rows):
                source[j, : len(encoded[i])] = torch.tensor(encoded[i])
            found = hugging_face(
                theirs, source, (source != tokenizer.pad_id).long(), options.beam, 0, 2 * longest + 20
            )
            for i, text in zip(rows, tokenizer.decode(found), strict=True):
                outputs[i] = text
        return outputs

    outputs: dict[str, list[str]] = {}

    def keep(name: str, texts: list[str]) -> None:
        outputs[name] = texts

    seconds = interleaved(
        {
            "Hugging Face fp32": lambda: keep("Hugging Face fp32", theirs_do()),
            "Polyhead fp32": lambda: keep(
                "Polyhead fp32", run.translate(sources, beam_size=options.beam, batch_tokens=batch_tokens)
            ),
            "Polyhead bf16": lambda: keep(
                "Polyhead bf16", half.translate(sources, beam_size=options.beam, batch_tokens=batch_tokens)
            ),
        },
        options.rounds,
        warmup=0,
    )
    rows = [["system", "sentences/s", "times Hugging Face fp32", "BLEU", "outputs as Hugging Face's"]]
    for name, times in seconds.items():
        same = sum(a == b for a, b in zip(outputs[name], outputs["Hugging Face fp32"], strict=True))
        rows.append([name, f"{len(sources) / statistics.median(times):.1f}", f"{ratio(seconds['Hugging Face fp32'], times):.2f}",
                     f"{bleu(outputs[name], references).value:.2f}", f"{same} of {len(sources)}"])  # fmt: skip
    print(table(rows))


def hugging_face(
    model: torch.nn.Module, source: Tensor, mask: Tensor, beam: int, least: int, most: int
) -> list[list[int]]:
    """generate() of Hugging Face -> token ids without begin and end."""
    with torch.inference_mode():
        found = model.generate(  # type: ignore[operator]
            input_ids=source, attention_mask=mask, num_beams=beam, max_new_tokens=most, min_new_tokens=least, do_sample=False,
        )  # fmt: skip
    rows = found[:, 1:].tolist()
    return [
        row[: row.index(model.config.eos_token_id)] if model.config.eos_token_id in row else row
        for row in rows
    ]  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
