"""``polyhead shortlist``: build a lexical shortlist, so that a translator scores fewer tokens."""

from __future__ import annotations

import shlex
import time
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError

if TYPE_CHECKING:
    from polyhead.generation.shortlist.shortlist import Shortlist
    from polyhead.run.run import Run

MAX_HELD_OUT_PAIRS = 200  # maximum number of held-out pairs, on which coverage is measured
MAX_TRIAL_TEXTS = 50  # of them, translated with and without the shortlist
# maximum number of (source token, target token) cells in training, about 50 bytes each
MAX_COUNT_CELLS = 40_000_000


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="path of a trained translation model")],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILES",
            help="source and target files, or one TSV or JSONL, in the format of the run's data; or "
            "one text, which the run translates first",
            show_default="its training data",
        ),
    ] = None,
    per_token: Annotated[
        int, typer.Option(min=1, help="maximum number of output tokens per source token")
    ] = 50,
    frequent: Annotated[
        int, typer.Option(min=0, help="number of frequent tokens that are allowed in any text")
    ] = 100,
    limit: Annotated[int, typer.Option(min=2, help="number of pairs read, from the first")] = 100_000,
) -> None:
    """Build a lexical shortlist, the output tokens of each source token, for faster translation.

    The output projection of a decoder covers the whole vocabulary, and is often half of the work. This
    command learns which tokens translate which (IBM Model 1); translate, eval and serve with --shortlist
    compute logits only for the shortlist of the sentence. The effect is measured on held-out pairs. Small
    vocabularies, of about 10,000 tokens, gain nothing.

    \b
    polyhead shortlist runs/multi30k
    polyhead shortlist runs/opus-mt-en-de text.en
    polyhead translate runs/multi30k test.de --shortlist
    """
    from polyhead.cli.options import check_kind, load_run
    from polyhead.generation.settings import eos_ids_for
    from polyhead.generation.shortlist.shortlist import SHORTLIST_FILE, Shortlist
    from polyhead.hf.checkpoint_files import CheckpointFiles
    from polyhead.hf.published_checkpoint import read_model_type
    from polyhead.models.build import check_model_kind
    from polyhead.run.run_directory import MODEL_TYPE

    check_kind(directory, "encoder-decoder")
    if read_model_type(CheckpointFiles(directory)) not in (None, MODEL_TYPE):
        raise UserError(
            f"{directory} is a published checkpoint; convert it to a run: polyhead import {directory} RUN"
        )
    if (path := directory / SHORTLIST_FILE).exists():
        raise UserError(f"{path} already exists; to build another, remove it first")
    translator = load_run(directory, None, "fp32", "auto")
    check_model_kind(translator.config, ["encoder-decoder"])
    if translator.tokenizer.has_target_vocabulary:
        raise UserError("a shortlist requires one vocabulary; source and target of this run have one each")
    texts, sources, targets = load_training_pairs(translator, files or [], limit)
    num_held_out, end, room = min(MAX_HELD_OUT_PAIRS, len(texts) // 10 or 1), 0, MAX_COUNT_CELLS
    while end < len(texts) and room > 0:
        room -= (len(sources[end]) + 1) * len(targets[end])
        end += 1
    template = translator.tokenizer.seq2seq_template
    ends = eos_ids_for(translator.generation, translator.tokenizer.target_tokenizer, template.eos_id)
    trained = Shortlist.from_pairs(
        sources[num_held_out:end], targets[num_held_out:end], translator.config.vocab_size,
        per_token=per_token, frequent=frequent, required_ids=[*template.opening_ids, *ends],
    )  # fmt: skip
    print(f"learned from  {max(0, end - num_held_out):,} pairs", flush=True)
    print_coverage(trained, sources[:num_held_out], targets[:num_held_out])
    translator.get_shortlist = lambda: trained
    print_speedup(translator, texts[: min(num_held_out, MAX_TRIAL_TEXTS)])
    trained.save(directory)
    print(f"wrote {directory / SHORTLIST_FILE}; next: polyhead translate {directory} input.txt --shortlist")


def load_training_pairs(
    run: Run, files: list[str], limit: int
) -> tuple[list[str], list[list[int]], list[list[int]]]:
    """Load texts, their tokens and the tokens of their translations.

    For a text without translations these are the run's own, by greedy search.
    """
    from polyhead.cli.eval_metrics import translations
    from polyhead.cli.line_io import LineCounter, print_warning, read_lines
    from polyhead.data.readers.tabular import infer_format

    if not files and run.recipe is None:
        raise UserError(
            "this run has no recipe with data files; pass files: polyhead shortlist "
            f"{shlex.quote(str(run.directory))} SOURCE TARGET, or only a source text"
        )
    if len(files) == 1 and infer_format((Path(files[0]),)) is None:
        counter = LineCounter()
        texts = [line for line in islice(read_lines(files[0]), limit) if not is_blank(line)]
        hypotheses = run.hypotheses(
            texts, beam_size=1, n_best=1, truncate=True, progress=counter.show_progress
        )
        counter.add(len(texts))
        counter.close()
        targets = [best.tokens for (best,) in hypotheses]
    else:
        lines, references, _ = translations.load_pairs(run, files, "train", limit, {})
        texts = [line for line, translated in zip(lines, references, strict=True) for _ in translated]
        targets = run.tokenizer.target_tokenizer.encode([*chain.from_iterable(references)])
    sources = run.tokenizer.encode(texts)
    max_len = run.config.max_len - run.tokenizer.seq2seq_template.max_special
    indices = [
        i for i, pair in enumerate(zip(sources, targets, strict=True)) if max(map(len, pair)) <= max_len
    ]
    if num_long := len(texts) - len(indices):  # their co-occurrence counts would not fit into memory
        print_warning(f"{num_long:,} pairs have more than {max_len} tokens per side: skipped")
    texts = [texts[i] for i in indices]
    sources = [sources[i] for i in indices]
    targets = [targets[i] for i in indices]
    if len(texts) < 2:
        raise UserError(f"a shortlist requires at least two pairs, better 10,000; got {len(texts)}")
    return texts, sources, targets


def print_coverage(shortlist: Shortlist, sources: list[list[int]], targets: list[list[int]]) -> None:
    """Print how many tokens the shortlists have, and how many reference tokens they contain."""
    lists = [set(shortlist.select_ids(source).tolist()) for source in sources]
    mean = sum(map(len, lists)) / len(lists)
    print(f"allowed per text  {mean:,.0f} of {shortlist.vocab_size:,} tokens on average")
    inside = sum(token in allowed for allowed, target in zip(lists, targets, strict=True) for token in target)
    print(f"references  {inside / max(1, sum(map(len, targets))):.1%} of their tokens are allowed")


def print_speedup(run: Run, texts: list[str]) -> None:
    """Translate texts with and without the shortlist; print how many agree, and the speedup."""
    outputs, seconds = [], []
    for shortlist in (False, True):
        run.translate(texts[:1], truncate=True, shortlist=shortlist)
        start = time.perf_counter()
        outputs.append(run.translate(texts, truncate=True, shortlist=shortlist))
        seconds.append(time.perf_counter() - start)
    same = sum(a == b for a, b in zip(*outputs, strict=True))
    print(f"translations  {same} of {len(texts)} unchanged, {seconds[0] / seconds[1]:.2f} times as fast")
