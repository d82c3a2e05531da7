"""Translation: speed against other libraries, with a shortlist, and with required terms.

./dev bench translate NAME [...]    one of peers, shortlist, terms
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import time
from collections.abc import Callable
from difflib import SequenceMatcher
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from _shared import apart, differences, interleaved, ratio, run_measurement, table, twin
from torch import Tensor, nn

import polyhead as ph
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.choice import Choice
from polyhead.data.readers.parallel_corpus import open_corpus, read_pairs
from polyhead.evaluate.metrics import KNOWN_METRICS, evaluate_translations, score_translations
from polyhead.generation.batch_decode import decode_sources, max_output_len, restore_order
from polyhead.generation.constraints.terminology import Term, Terminology
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.generation.engine.request import pad_rows
from polyhead.generation.shortlist.shortlist import Shortlist
from polyhead.kernels.int_linear import make_int8_linear
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.kernels.pack_model import linear_factory, pack_model
from polyhead.models import Seq2Seq, build, preset_config
from polyhead.run.run import Run
from polyhead.tokenizers.languages import with_languages
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.tasks.translation import open_split_corpus

PAD, BOS, EOS = 0, 1, 2


def peers(parser: argparse.ArgumentParser) -> None:
    """Translating with the same weights: Polyhead against Hugging Face generate, paired in one run.

    ./dev bench translate peers              base sizes, random weights, batch 32, beam 4, 32 tokens out
    ./dev bench translate peers --run RUN    a trained run on the test text of its recipe: BLEU, and how many
    outputs
                                                and tokens are those of fp32; other text with --source and
                                                --reference

    Hugging Face takes part where it has a model of the same equations (peers.py); else Polyhead is compared
    with itself.
    """
    parser.add_argument("--preset", default="base", help="sizes (default: base)")
    parser.add_argument("--vocab-size", type=int, default=10000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--beam", type=int, help="hypotheses kept (default: 4, or that of the run)")
    parser.add_argument("--source-len", type=int, default=26)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds; 0 does not time")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--tune-peers", action="store_true", help="give Hugging Face Polyhead's memory settings too"
    )
    parser.add_argument("--run", type=Path, help="a trained run")
    parser.add_argument(
        "--source", type=Path, help="text to translate (default: the test text of the run's recipe)"
    )
    parser.add_argument("--reference", type=Path, help="its translation, line by line")
    parser.add_argument("--limit", type=int, help="lines translated, the first ones (default: all)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.run:
        return trained(options)
    options.beam = options.beam or 4
    return equal_lengths(options)


def equal_lengths(options: argparse.Namespace) -> None:
    """Random weights, the same for all; every output has the same length, so only speed differs."""
    systems = {
        "Hugging Face fp32": hugging_face_fp32,
        "Polyhead fp32, not packed": plain_fp32,
        "Polyhead fp32": polyhead_fp32,
        "Hugging Face bf16": hugging_face_bf16,
        "Polyhead bf16": polyhead_bf16,
        "Polyhead int8": polyhead_int8,
    }
    with apart(systems, options) as calls:
        theirs = calls["Hugging Face fp32"]()
        same = sum(a == b for a, b in zip(calls["Polyhead fp32"](), theirs, strict=True))
        print(f"fp32 outputs equal to Hugging Face's: {same} of {options.batch}")
        seconds = interleaved(calls, options.rounds)
    tokens = options.batch * options.new_tokens
    rows = [["system", "tokens/s", "times Hugging Face fp32"]]
    for name, times in seconds.items():
        rows.append(
            [
                name,
                f"{tokens / statistics.median(times):,.0f}",
                f"{ratio(seconds['Hugging Face fp32'], times):.2f}",
            ]
        )
    memory = ", Hugging Face with Polyhead's memory settings" if options.tune_peers else ""
    print(f"{options.preset}, batch {options.batch}, beam {options.beam}, {options.source_len} tokens in, "
          f"{options.new_tokens} out, "
          f"{options.threads} threads, medians of {options.rounds} interleaved rounds, a process "
          f"each{memory}")  # fmt: skip
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
    return ours_of(options, pack_model)


def polyhead_bf16(options: argparse.Namespace) -> Outputs:
    """As `polyhead translate --dtype bf16`."""
    return ours_of(options, lambda model: pack_model(model.bfloat16()))


def polyhead_int8(options: argparse.Namespace) -> Outputs:
    """As `polyhead translate --dtype int8`."""
    return ours_of(options, lambda model: pack_model(model, make_int8_linear))


def theirs_of(options: argparse.Namespace, dtype: torch.dtype) -> Outputs:
    """What one call of a Hugging Face process does."""
    if options.tune_peers:
        tune_malloc()
    model, source = prepare(options)
    theirs, n = twin(model, PAD, BOS, EOS).eval().to(dtype), options.new_tokens
    return lambda: hugging_face(theirs, source, torch.ones_like(source), options.beam, n, least=n)


def ours_of(options: argparse.Namespace, change: Callable[[Seq2Seq], nn.Module]) -> Outputs:
    """What one call of a Polyhead process does."""
    tune_malloc()  # as every verb of the command line does
    model, source = prepare(options)
    model, n = change(model), options.new_tokens

    def translate() -> list[list[int]]:
        found = beam_search(
            model, source, None, bos_id=BOS, eos_id=EOS, beam_size=options.beam,
            max_new_tokens=[n] * len(source),
            min_new_tokens=n,
        )  # fmt: skip
        return [best[0].tokens for best in found]

    return translate


def prepare(options: argparse.Namespace) -> tuple[Seq2Seq, Tensor]:
    """The same weights and sources in every process."""
    torch.set_num_threads(options.threads)
    model = build(preset_config(options.preset, options.vocab_size), seed=1).eval()
    torch.manual_seed(2)
    return model, torch.randint(5, options.vocab_size, (options.batch, options.source_len))


def trained(options: argparse.Namespace) -> None:
    """A trained run on real text: speed, BLEU, and how far each output is that of fp32."""
    run = ph.load(options.run)
    sources, references = text_of(run, options)
    systems = {
        "Polyhead fp32": run_fp32,
        "Polyhead bf16": run_bf16,
        "Polyhead int8": run_int8,
        "Polyhead int4": run_int4,
    }
    if why := differences(run.config):
        print(f"Hugging Face has no model of these equations ({why}): Polyhead alone")
    else:
        systems = {"Hugging Face fp32": run_twin} | systems
    with apart(systems, options) as calls:
        outputs = {name: translate() for name, translate in calls.items()}
        seconds = interleaved(calls, options.rounds, warmup=0)
    first = next(iter(systems))
    texts = {name: run.tokenizer.decode(tokens) for name, tokens in outputs.items()}
    scores = {
        name: score_translations(KNOWN_METRICS["bleu"], lines, references, target_lang(run))
        for name, lines in texts.items()
    }
    rows = [
        [
            "system",
            "sentences/s",
            f"times {first}",
            "BLEU",
            "outputs as Polyhead fp32",
            "tokens as Polyhead fp32",
        ]
    ]
    wanted = outputs["Polyhead fp32"]
    for name, found in outputs.items():
        times = seconds[name]
        speed = f"{len(sources) / statistics.median(times):.1f}" if times else "-"
        same = sum(a == b for a, b in zip(found, wanted, strict=True))
        rows.append([name, speed, f"{ratio(seconds[first], times):.2f}" if times else "-",
            f"{scores[name].value:.2f}",
                     f"{same:,} of {len(sources):,}", share(*common(found, wanted))])  # fmt: skip
    timed = f"medians of {options.rounds} interleaved rounds" if options.rounds else "not timed"
    print(f"{options.run}, beam {beam(run, options)}, {len(sources):,} sentences, {options.threads} "
          f"threads, {timed}, "
          f"a process each; BLEU {scores[first].signature}")  # fmt: skip
    print(table(rows))
    for dtype in ("bf16", "int8", "int4"):
        found = share(*choices(run, ph.load(options.run, dtype=dtype), sources, wanted))
        print(f"likeliest next token after each beginning of the fp32 outputs, {dtype} as fp32: {found}")


def run_fp32(options: argparse.Namespace) -> Outputs:
    """As `polyhead translate` does it."""
    return translator_of(options, "fp32")


def run_bf16(options: argparse.Namespace) -> Outputs:
    """As `polyhead translate --dtype bf16`."""
    return translator_of(options, "bf16")


def run_int8(options: argparse.Namespace) -> Outputs:
    """As `polyhead translate --dtype int8`."""
    return translator_of(options, "int8")


def run_int4(options: argparse.Namespace) -> Outputs:
    """As `polyhead translate --dtype int4`."""
    return translator_of(options, "int4")


def translator_of(options: argparse.Namespace, dtype: str) -> Outputs:
    """What one call of a Polyhead process does with the text."""
    tune_malloc()
    torch.set_num_threads(options.threads)
    run = ph.load(options.run, dtype=dtype, fast=True)
    sources, size = text_of(run, options)[0], beam(run, options)
    return lambda: [best[0].tokens for best in run.hypotheses(sources, truncate=True, beam_size=size)]


def run_twin(options: argparse.Namespace) -> Outputs:
    """The same of a Hugging Face process: sentences of like length together, penalties as the run's own.

    Its limit of length holds for a whole batch, so an output that never ends may be longer here than
    Polyhead's.
    """
    if options.tune_peers:
        tune_malloc()
    torch.set_num_threads(options.threads)
    run = ph.load(options.run)
    t, g, size = run.tokenizer, run.generation, beam(run, options)
    theirs = twin(run.model, t.pad_id, t.bos_id, t.eos_id).eval()
    encoded = [[*ids[: run.config.max_len - 1], t.eos_id] for ids in t.encode(text_of(run, options)[0])]
    order = sorted(range(len(encoded)), key=lambda i: -len(encoded[i]))
    rows_of = [order[i : i + options.batch] for i in range(0, len(order), options.batch)]

    def translate() -> list[list[int]]:
        outputs: list[list[int]] = [[]] * len(encoded)
        for rows in rows_of:
            source, _ = pad_rows([encoded[i] for i in rows], t.pad_id, torch.device("cpu"))
            most = min(run.config.max_len, max_output_len(source.size(1) - 1, g))
            found = hugging_face(theirs, source, (source != t.pad_id).long(), size, most,
                least=g.min_new_tokens,
                                 length_penalty=g.length_penalty,
                                 early_stopping=g.early_stopping)  # fmt: skip
            for i, tokens in zip(rows, found, strict=True):
                outputs[i] = tokens
        return outputs

    return translate


def text_of(run: Run, options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Sources and references: those given, else the test text of the run's recipe."""
    if options.source:
        both = [
            path.read_text(encoding="utf-8").strip("\n").split("\n")
            for path in (options.source, options.reference)
        ]
    else:
        assert run.recipe is not None and run.recipe.data.test, (
            "no test text in the recipe: give --source and --reference"
        )
        both = list(read_pairs(open_split_corpus(run.recipe, "test"))[:2])
    return both[0][: options.limit], both[1][: options.limit]


def target_lang(run: Run) -> str:
    """The language BLEU splits into words."""
    return run.recipe.data.target_lang if run.recipe else ""


def beam(run: Run, options: argparse.Namespace) -> int:
    """The beam asked for, else that of the run."""
    return options.beam or run.generation.beam_size


def share(part: int, whole: int) -> str:
    """98.76 % (part of whole)."""
    return f"{100 * part / whole:.2f} % ({part:,} of {whole:,})"


def common(outputs: list[list[int]], wanted: list[list[int]]) -> tuple[int, int]:
    """Tokens in stretches that both outputs of a sentence have in the same order, of those of the longer
    ones.
    """
    pairs = list(zip(outputs, wanted, strict=True))
    matchers = [SequenceMatcher(None, a, b, autojunk=False) for a, b in pairs]
    same = sum(block.size for matcher in matchers for block in matcher.get_matching_blocks())
    return same, sum(max(map(len, pair)) for pair in pairs)


@torch.inference_mode()
def choices(run: Run, other: Run, sources: list[str], outputs: list[list[int]]) -> tuple[int, int]:
    """At how many places of given outputs, teacher forced, two runs find the same next token likeliest, of
    how many.
    """
    t, same, of = run.tokenizer, 0, 0
    encoded = [[*ids[: run.config.max_len - 1], t.eos_id] for ids in t.encode(sources)]
    for start in range(0, len(encoded), 64):
        rows = slice(start, start + 64)
        source, pos = pad_rows(encoded[rows], t.pad_id, torch.device("cpu"))
        target, target_pos = pad_rows(
            [[t.bos_id, *tokens] for tokens in outputs[rows]], t.pad_id, torch.device("cpu")
        )
        said = torch.ones_like(target, dtype=torch.bool) if target_pos is None else target_pos >= 0
        a, b = (each.model(source, target, pos).argmax(-1)[said] for each in (run, other))
        same, of = same + int((a == b).sum()), of + len(a)
    return same, of


def hugging_face(
    model: torch.nn.Module, source: Tensor, mask: Tensor, beam: int, most: int, *, least: int, **options: Any
) -> list[list[int]]:
    """generate() of Hugging Face -> token ids without begin and end."""
    with torch.inference_mode():
        found = model.generate(  # type: ignore[operator]
            input_ids=source, attention_mask=mask, num_beams=beam, max_new_tokens=most, min_new_tokens=least,
            do_sample=False,
            **options,
        )  # fmt: skip
    rows = found[:, 1:].tolist()
    return [
        row[: row.index(model.config.eos_token_id)] if model.config.eos_token_id in row else row
        for row in rows
    ]  # type: ignore[union-attr]


def shortlist(parser: argparse.ArgumentParser) -> None:
    """Translating with a shortlist and without, paired in one run.

    ./dev bench translate shortlist train.en train.de       the base size of the literature, a vocabulary of
    32,000 of this text

    Vocabulary and shortlist are learned from the text. The weights are random, and every output goes to its
    greatest length, so only speed differs; what a shortlist changes in translations is told by polyhead
    shortlist RUN, and by polyhead eval RUN --shortlist.
    """
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--preset", default="base", help="sizes (default: base)")
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--pairs", type=int, default=50000, help="pairs that are learned from")
    parser.add_argument("--each", type=int, default=50, help="tokens that a source token suggests")
    parser.add_argument("--lines", type=int, default=32, help="lines that are translated")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tune_malloc()
    corpus = open_corpus([options.source, options.target])
    texts, translations, _ = read_pairs(corpus, options.pairs + options.lines)
    tokenizer = train_tokenizer(chain(texts, translations), Choice("bpe"), options.vocab_size)
    sources, targets = tokenizer.encode(texts), tokenizer.encode(translations)
    lines, V = sources[-options.lines :], tokenizer.vocab_size
    shortlist = Shortlist.from_pairs(
        sources[: options.pairs], targets[: options.pairs], V, per_token=options.each, frequent=100,
            required_ids=[tokenizer.eos_id]
    )  # fmt: skip
    print(f"{V:,} tokens; lines of {sum(map(len, lines)) / len(lines):.0f}, of which each suggests "
          f"{sum(len(shortlist.select_ids(line)) for line in lines) / len(lines):,.0f}")  # fmt: skip
    rows = [["weights", "lines together", "beams", "ms a line", "with the shortlist", "faster by"]]
    for dtype in ("fp32", "int8"):
        model = pack_model(build(preset_config(options.preset, vocab_size=V)).eval(), linear_factory(dtype))
        assert isinstance(model, Seq2Seq)
        for together in (1, len(lines)):
            for beam in (1, options.beam):
                calls = {
                    way: partial(translate, model, tokenizer, lines, beam, together, some)
                    for way, some in (("all", None), ("some", shortlist))
                }
                seconds = interleaved(calls, options.rounds)
                each = [f"{1000 * min(seconds[way]) / len(lines):.1f}" for way in calls]
                faster = f"{ratio(seconds['all'], seconds['some']):.2f}"
                rows.append([dtype, str(together), str(beam), *each, faster])
                print(rows[-1], flush=True)
    print(table(rows))


def translate(
    model: Seq2Seq,
    tokenizer: Tokenizer,
    lines: list[list[int]],
    beam: int,
    together: int,
    shortlist: Shortlist | None,
) -> None:
    """Every output as long as its source and two more; so many lines at a time."""
    config = GenerationConfig(beam_size=beam, max_length_ratio=1.0, max_length_extra=2, batch_tokens=2**20)
    for first in range(0, len(lines), together):
        some = lines[first : first + together]
        found = decode_sources(
            model, some, config, seq2seq_template=tokenizer.seq2seq_template, max_len=512,
            bad_token_ids=[tokenizer.eos_id], shortlist=shortlist
        )  # fmt: skip
        assert len(list(found)) == len(some)


WORD = re.compile(r"\w+")


def terms(parser: argparse.ArgumentParser) -> None:
    """Translations that must say words of the reference, beside those that need not (Post and Vilar, 2018,
    sec. 5).

    ./dev bench translate terms runs/multi30k test.en test.de

    The words are drawn from those of each reference that the plain translation lacks: what a person would
      correct in it.
    """
    parser.add_argument("run", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    run = ph.load(options.run)
    texts, references, _ = read_pairs(open_corpus([options.source, options.target]), options.lines)

    def translated(terms: list[list[Term]]) -> tuple[list[str], float]:
        """The translations, and milliseconds for each."""
        config = run.generation.model_copy(update={"beam_size": options.beam})
        given = run.model, run.tokenizer.encode(texts), config
        begin = time.perf_counter()
        found = decode_sources(
            *given, seq2seq_template=with_languages(run.tokenizer), max_len=run.config.max_len, terms=terms
        )
        best = [outputs[0].tokens for outputs in restore_order(found, len(texts))]
        took = time.perf_counter() - begin
        return run.tokenizer.decode(best), 1000 * took / len(texts)

    plain, usual = translated([[] for _ in texts])
    bleu, _, chrf = evaluate_translations(plain, references).scores
    rows = [
        ["words of the reference", "a line", "said without", "said", "BLEU", "chrF", "ms a line", "times"]
    ]
    rows.append(["none", "", "", "", f"{bleu.value:.2f}", f"{chrf.value:.2f}", f"{usual:.1f}", "1.00"])
    for most in (1, 2, 3, 4, 0):
        draw = random.Random(options.seed)
        words = [
            _lacked(reference, text, draw, most) for reference, text in zip(references, plain, strict=True)
        ]
        names = {f"{i} {word}": word for i, own in enumerate(words) for word in own}
        glossary = Terminology(names, run.tokenizer.target_tokenizer)
        terms = [
            [term for word in own for term in glossary.find_terms(f"{i} {word}")]
            for i, own in enumerate(words)
        ]
        found, took = translated(terms)
        (bleu, _, chrf), wanted = evaluate_translations(found, references).scores, sum(map(len, words))
        said = sum(word in text for own, text in zip(words, found, strict=True) for word in own)
        without = sum(word in text for own, text in zip(words, plain, strict=True) for word in own)
        rows.append([
            f"{most} that it lacks" if most else "any one", f"{wanted / len(texts):.2f}",
            f"{without / wanted:.1%}",
            f"{said / wanted:.1%}", f"{bleu.value:.2f}", f"{chrf.value:.2f}", f"{took:.1f}",
            f"{took / usual:.2f}",
        ])  # fmt: skip
    print(table(rows))


def _lacked(reference: str, text: str, draw: random.Random, most: int) -> list[str]:
    """Words of a reference that a translation lacks, so many at most; 0 for any one, whether it has it or
    not.
    """
    words = sorted(set(WORD.findall(reference)))
    words = [word for word in words if not most or word not in text]
    return draw.sample(words, min(most or 1, len(words)))


if __name__ == "__main__":
    run_measurement(__doc__ or "", peers, shortlist, terms)
