"""``polyhead translate``: lines in, translations out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyhead.cli.answers import answers, output_place
from polyhead.cli.beside import files_beside, refuse_long
from polyhead.cli.lines import Counter, chunk_size, one_line, read_lines
from polyhead.cli.options import (
    AS_TRAINED,
    BatchTokens,
    BeamSize,
    CacheName,
    Device,
    Dtype,
    EarlyStopping,
    LengthPenalty,
    MinNewTokens,
    MinP,
    NoRepeat,
    Output,
    Short,
    SourceLang,
    TargetLang,
    Temperature,
    TermsFile,
    TopK,
    TopP,
    With,
    opened,
    parts,
    typed,
)
from polyhead.data.reading import chunks

if TYPE_CHECKING:
    from polyhead.run import Run


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="directory of a trained run")],
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="text, one sentence a line, .gz too; - is standard input")
    ] = "-",
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    n_best: Annotated[
        int | None,
        typer.Option(help="translations for a line, on as many lines; best first", show_default=AS_TRAINED),
    ] = None,
    min_new_tokens: MinNewTokens = None,
    early_stopping: EarlyStopping = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="the same seed draws the same translations", show_default="0")
    ] = None,
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    no_repeat_ngram_size: NoRepeat = None,
    cache: CacheName = None,
    batch_tokens: BatchTokens = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="FILE", help="how each translation must begin, line by line")
    ] = None,
    terms: TermsFile = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="put the score and a tab before each translation")
    ] = False,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="translate the beginning of lines too long for the model")
    ] = False,
    shortlist: Short = False,
    output: Output = None,
    chunk: Annotated[
        int, typer.Option(min=1, help="lines read before the first is answered; 1 in a conversation")
    ] = 512,
    others: With = None,
    dtype: Dtype = "fp32",
    device: Device = "auto",
) -> None:
    """Translate a file or what is piped in, one line at a time.

    A blank line gives a blank line, so line n of the output belongs to line n of the input. With --temperature, --top-k, --top-p or
    --min-p translations are drawn by their probabilities; without, the best ones are searched for.

    \b
    polyhead translate runs/multi30k test.de --output test.en
    polyhead translate runs/multi30k more.de --output more.en --temperature 1
    echo "Ein Hund bellt." | polyhead translate runs/multi30k --n-best 3 --scores
    """
    changes = typed(
        beam_size=beam_size,
        length_penalty=length_penalty,
        min_new_tokens=min_new_tokens,
        early_stopping=early_stopping,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        no_repeat_ngram_size=no_repeat_ngram_size,
        batch_tokens=batch_tokens,
        source_lang=source_lang,
        target_lang=target_lang,
    ) | parts(cache=cache)
    output_place(output, [source, prefix, terms], directory, others)
    lines, beside = read_lines(source), files_beside(source, prefix, terms)
    from polyhead.cli.swapped import SwapCheck
    from polyhead.text.sides import between

    translator = opened(directory, others, dtype, device)
    cuts, most = translator.tokenizer, translator.config.max_len
    counter, done = Counter(prints=output is None), 0
    changes |= {"truncate": truncate, "shortlist": shortlist, "progress": counter.at}
    n_best = translator.generation.n_best if n_best is None else n_best
    sides = between(cuts, source_lang, target_lang)
    for file in beside:
        file.about(cuts, sides, most)
        changes |= file.of([], 0)
    translator.translate([], n_best=n_best, **changes)  # a wrong option is told before the first line comes
    swap = SwapCheck(translator, source_lang, target_lang)
    with answers(output, "translations") as add:
        for texts in chunks(lines, chunk_size(source, chunk)):
            swap.read(texts)
            if not truncate:
                way = "Split the line, or translate its beginning with --truncate"
                refuse_long(cuts.encode(texts), most - len(sides.source(())), done + 1, "line", way)
            for file in beside:
                changes |= file.of(texts, done)
            found = translations(translator, texts, n_best, changes, done)
            add((shown(score, text, scores) for score, text in found), len(texts))
            done += len(texts)
            counter.add(len(texts))
        counter.close()
        for file in beside:
            file.end(done)


def shown(score: float | None, text: str, scores: bool) -> str:
    """A line of the output."""
    return text if score is None or not scores else f"{score:.4f}\t{text}"


def translations(
    run: Run, texts: list[str], n_best: int, changes: dict[str, Any], first: int
) -> Iterator[tuple[float | None, str]]:
    """(score, translation), ``n_best`` of them for each text; blanks without a score for a blank text, and where fewer were found.

    ``first`` is the number of the first text among all.
    """
    from polyhead.generate.stream import decode_whole

    given = [text if text.strip() else "" for text in texts]
    for text, best in zip(given, run.hypotheses(given, n_best=n_best, first=first, **changes), strict=True):
        outputs = decode_whole(run.tokenizer, [hypothesis.tokens for hypothesis in best])
        for hypothesis, output in zip(best, outputs, strict=True):
            yield hypothesis.score if text else None, one_line(output)
        yield from [(None, "")] * (n_best - len(outputs))
