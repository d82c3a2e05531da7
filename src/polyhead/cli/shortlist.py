"""``polyhead shortlist``: which tokens may translate which, so that a translator looks at few of a large vocabulary."""

from __future__ import annotations

import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyhead.errors import UserError

if TYPE_CHECKING:
    from polyhead.generate.shortlist import Shortlist
    from polyhead.run import Run

HELD = 200  # pairs at most that are not learned from: what the list lacks is measured on them
TRIED = 50  # of these are translated, with the list and without
CELLS = 40_000_000  # source tokens beside target tokens that are learned from at most: some 50 bytes each


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="directory of a trained translator")],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILES",
            help="source and target, or one TSV or JSONL, as the run reads them; or one text, which the run translates first",
            show_default="those it learned from",
        ),
    ] = None,
    each: Annotated[int, typer.Option(min=1, help="tokens at most that a source token suggests")] = 50,
    always: Annotated[int, typer.Option(min=0, help="frequent tokens that may stand in any text")] = 100,
    limit: Annotated[int, typer.Option(min=2, help="pairs that are read, the first ones")] = 100_000,
) -> None:
    """Make a translator faster: the tokens that each source word suggests.

    The last product of a decoder is one with its whole vocabulary, and often half of the work. Here is learned which
    tokens translate which (IBM Model 1); translate, eval and serve with --shortlist look at those of the sentence alone.
    What that changes is measured on pairs that were put aside. Small vocabularies, of 10,000 tokens say, gain nothing.

    \b
    polyhead shortlist runs/multi30k
    polyhead shortlist runs/opus-mt-en-de text.en
    polyhead translate runs/multi30k test.de --shortlist
    """
    from polyhead.cli.options import opened
    from polyhead.generate.settings import ends_of
    from polyhead.generate.shortlist import FILE, Shortlist
    from polyhead.hf.reading import model_type
    from polyhead.models.build import check_able
    from polyhead.run_files import MODEL_TYPE

    if model_type(directory) not in (None, MODEL_TYPE):
        raise UserError(
            f"{directory} is a published checkpoint; make a run of it: polyhead import {directory} RUN"
        )
    if (there := directory / FILE).exists():
        raise UserError(f"{there} is there already; remove it first, to learn another")
    translator = opened(directory, None, "fp32", "auto")
    check_able(translator.config, ["encoder-decoder"])
    texts, sources, targets = pairs(translator, files or [], limit)
    held, end, room = min(HELD, len(texts) // 10 or 1), 0, CELLS
    while end < len(texts) and room > 0:
        room -= (len(sources[end]) + 1) * len(targets[end])
        end += 1
    sides = translator.tokenizer.sides
    ends = ends_of(translator.generation, translator.tokenizer.target, sides.end)
    made = Shortlist.learned(
        sources[held:end], targets[held:end], translator.config.vocab_size,
        each=each, always=always, needed=[*sides.opening, *ends],
    )  # fmt: skip
    print(f"learned from  {max(0, end - held):,} pairs", flush=True)
    told(made, sources[:held], targets[:held])
    translator.shortlist = lambda: made
    tried(translator, texts[: min(held, TRIED)])
    made.save(directory)
    print(f"wrote {directory / FILE}; use it: polyhead translate {directory} input.txt --shortlist")


def pairs(run: Run, files: list[str], limit: int) -> tuple[list[str], list[list[int]], list[list[int]]]:
    """Texts, their tokens and those of their translations; of a text alone these are the run's own, by greedy search."""
    from polyhead.cli.lines import Counter, read_lines
    from polyhead.cli.measures import translations
    from polyhead.data.columns import kind_of

    if not files and run.recipe is None:
        raise UserError(
            "this run has no recipe that names files; give them: polyhead shortlist RUN SOURCE TARGET, or a text alone"
        )
    if len(files) == 1 and kind_of((Path(files[0]),)) is None:
        texts, counter = [line for line in islice(read_lines(files[0]), limit) if line.strip()], Counter()
        found = run.hypotheses(texts, beam_size=1, n_best=1, truncate=True, progress=counter.at)
        counter.add(len(texts))
        counter.close()
        targets = [best.tokens for (best,) in found]
    else:
        texts, others, _ = translations.pairs(run, files, "train", limit, {})
        targets = run.tokenizer.target.encode(others)
    sources, most = run.tokenizer.encode(texts), run.config.max_len - run.tokenizer.sides.most
    kept = [i for i, pair in enumerate(zip(sources, targets, strict=True)) if max(map(len, pair)) <= most]
    if long := len(texts) - len(kept):  # of a few of these each token beside each is more than memory holds
        print(f"polyhead: {long:,} pairs have more than {most} tokens a side: left out", file=sys.stderr)
    texts, sources, targets = [texts[i] for i in kept], [sources[i] for i in kept], [targets[i] for i in kept]
    if len(texts) < 2:
        raise UserError(
            f"a shortlist is learned from two pairs at least, better from 10,000; got {len(texts)}"
        )
    return texts, sources, targets


def told(made: Shortlist, sources: list[list[int]], targets: list[list[int]]) -> None:
    """How much of a vocabulary texts may use, and how much of their references they could not say."""
    lists = [set(made.of(source).tolist()) for source in sources]
    mean = sum(map(len, lists)) / len(lists)
    print(f"a text may say  {mean:,.0f} of {made.vocab_size:,} tokens, in the mean")
    inside = sum(token in own for own, target in zip(lists, targets, strict=True) for token in target)
    print(f"references have  {inside / max(1, sum(map(len, targets))):.1%} of their tokens among them")


def tried(run: Run, texts: list[str]) -> None:
    """Translate some texts with the list and without."""
    outputs, seconds = [], []
    for shortlist in (False, True):
        run.translate(texts[:1], truncate=True, shortlist=shortlist)
        start = time.perf_counter()
        outputs.append(run.translate(texts, truncate=True, shortlist=shortlist))
        seconds.append(time.perf_counter() - start)
    same = sum(a == b for a, b in zip(*outputs, strict=True))
    print(f"translations  {same} of {len(texts)} stay the same, {seconds[0] / seconds[1]:.2f} times as fast")
