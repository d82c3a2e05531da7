"""``polyhead eval``: how good a trained model is."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from polyhead.cli.lines import Counter, one_line
from polyhead.errors import UserError

if TYPE_CHECKING:
    from polyhead.run import Run

OF_THE_RUN = "of the run"


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="directory of a trained run")],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILES",
            help="source and target, or one TSV or JSONL; plain text for a language model; labelled texts in TSV or JSONL for a "
            "classifier; else those of the recipe",
        ),
    ] = None,
    split: Annotated[Literal["test", "valid"], typer.Option(help="which files of the recipe")] = "test",
    beam_size: Annotated[
        int | None, typer.Option(help="hypotheses kept, 1 is greedy", show_default=OF_THE_RUN)
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="above 0 favours longer outputs", show_default=OF_THE_RUN)
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(help="tokens decoded together; less needs less memory", show_default=OF_THE_RUN),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="pairs measured, the first ones")] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="write the translations, or labels, there, a line each"),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="classifiers: column or key of the text; twice for pairs",
            show_default=OF_THE_RUN,
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="classifiers: column or key of the label", show_default=OF_THE_RUN
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="fp32; bf16: half the memory, faster where the CPU has it; int8: faster still, a little less exact"
        ),
    ] = "fp32",
) -> None:
    """Measure a trained model: BLEU, chrF, perplexity, accuracy.

    BLEU and chrF are sacreBLEU's, of the whole corpus, on detokenised translations, with their signatures.
    The perplexity is that of a reference token, end of sentence included. Of a language model: perplexity of a token
    and of a word, bits of a character. Of a classifier: accuracy, the mean F1 of the classes, Matthews correlation. Of a model
    that recovers what is hidden: loss, perplexity and accuracy of that.

    \b
    polyhead eval runs/multi30k
    polyhead eval runs/shakespeare --split valid
    polyhead eval runs/sst2 dev.tsv --output labels.txt
    polyhead eval runs/multi30k test.de test.en --beam-size 1 --output test.out
    """
    from polyhead.fast.memory import tune_memory
    from polyhead.loading import load

    tune_memory()

    check_output(output)
    loaded = load(directory, dtype=dtype, fast=True)
    typed: dict[str, Any] = {
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "batch_tokens": batch_tokens,
    }
    changes = {name: value for name, value in typed.items() if value is not None}
    if loaded.config.labels:
        if unfit := sorted({"beam_size", "length_penalty"} & set(changes)):
            raise UserError(
                f"--{unfit[0].replace('_', '-')}: of translations; this run is a classifier, and nothing is decoded"
            )
        columns = {
            "text": [column(one) for one in text] if text else None,
            "label": None if label is None else column(label),
        }
        named = {name: value for name, value in columns.items() if value is not None}
        show_classes(loaded, files or [], split, limit, output, batch_tokens or 4096, named)
        return
    if text or label:
        raise UserError("--text and --label: columns of labelled texts; this run is no classifier")
    if loaded.config.kind == "decoder":
        given = {**changes, "limit": limit, "output": output}
        if unfit := [name for name, value in given.items() if value is not None]:
            options = ", ".join("--" + name.replace("_", "-") for name in unfit)
            raise UserError(
                f"{options}: of translations; this run is a language model, and nothing is decoded"
            )
        show_language(loaded, files or [], split)
        return
    if loaded.recipe and loaded.recipe.task.name in RECOVERED:
        if unfit := [
            name for name, value in {**changes, "limit": limit, "output": output}.items() if value is not None
        ]:
            raise UserError(
                f"--{unfit[0].replace('_', '-')}: of translations; this run learned to recover what is hidden"
            )
        show_recovered(loaded, files or [], split)
        return
    if loaded.config.kind == "encoder":
        raise UserError(
            "this run is an encoder without a recipe, so nothing says what is to be measured; train from it (start), or use fill-mask or embed"
        )
    sources, references = pairs(loaded, files or [], split, limit)
    counter, start = Counter(), time.perf_counter()
    lang = loaded.recipe.data.target_lang if loaded.recipe else ""
    measured = loaded.evaluate(sources, references, lang=lang, progress=counter.at, **changes)
    seconds = time.perf_counter() - start
    counter.add(len(sources))
    counter.close()
    if output is not None:
        output.write_text("".join(f"{one_line(text)}\n" for text in measured.outputs), encoding="utf-8")
    for score in measured.scores:
        show(score.name, score.value, score.signature)
    exact = sum(a == b for a, b in zip(measured.outputs, references, strict=True))
    show("exact", 100 * exact / len(references), "% of the translations equal to their reference")
    show_perplexity(loaded, sources, references)
    show("speed", len(sources) / seconds, f"translations a second, {len(sources):,} in {seconds:,.1f} s")


def column(name: str) -> str | int:
    """A column by name, or by number from 0."""
    return int(name) if name.isdecimal() else name


def check_output(path: Path | None) -> None:
    """A file that could not be written is told before the work and not after it."""
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"--output {path} is a directory; name a file in it")
    if not path.parent.is_dir():
        raise UserError(f"--output {path}: there is no directory {path.parent}")


def no_files(split: str, files: str, run: Run) -> UserError:
    """There is nothing to measure on: what to type instead."""
    if run.recipe is None:
        return UserError(f"this run has no recipe that names files; give them: polyhead eval RUN {files}")
    held = run.recipe.data.valid or run.recipe.data.valid_share
    other = ", or take --split valid" if split == "test" and held else ""
    return UserError(f"this run's recipe names no {split} files; give them: polyhead eval RUN {files}{other}")


RECOVERED = ("masked-lm", "denoising")


def show(name: str, value: float, remark: str) -> None:
    """One line of the table."""
    print(f"{name:<11} {value:>9.3f}  {remark}", flush=True)


def show_language(run: Run, files: Sequence[str], split: Literal["test", "valid"]) -> None:
    """The table of a language model."""
    from polyhead.data.text import open_text
    from polyhead.train.tasks.plain_text import text_of

    if run.recipe and not files:
        if split == "test" and not run.recipe.data.test:
            raise no_files(split, "FILE", run)
        text = text_of(run.recipe, split)
    elif not files:
        raise no_files(split, "FILE", run)
    else:
        text = open_text([Path(file) for file in files], run.recipe.data.documents if run.recipe else "file")
    start = time.perf_counter()
    measured = run.measure(text)
    seconds = time.perf_counter() - start
    if measured.broken:
        print(f"polyhead: {text.where}: skipped {measured.broken:,} lines that are no text", file=sys.stderr)
    show("loss", measured.loss, f"nats of a token, {measured.tokens:,} tokens")
    show("perplexity", measured.per_token, "of a token, which depends on the tokenizer")
    show("word-ppl", measured.per_word, f"of a word, {measured.words:,} with the ends of lines")
    show("bits", measured.bits_per_character, f"of a character, {measured.characters:,} characters")
    show("speed", measured.tokens / seconds, f"tokens a second, in {seconds:,.1f} s with the tokenizer")


def show_recovered(run: Run, files: Sequence[str], split: Literal["test", "valid"]) -> None:
    """The table of a model that learned to recover what is hidden: always the same of it, so that models compare."""
    from polyhead.registry import TASK
    from polyhead.train.reporting import Reporters

    recipe = run.recipe
    assert recipe is not None
    if split == "test" and not files and not recipe.data.test:
        raise no_files(split, "FILE", run)
    changed: dict[str, Any] = {}
    if files:
        changed = {"valid": [str(Path(file).absolute()) for file in files]}
    elif split == "test":
        changed = {"valid": recipe.data.test}
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update=changed)})
    task = TASK.get(recipe.task.name).open(recipe, run.tokenizer, Reporters())
    remarks = {
        "loss": "nats of a token asked for",
        "ppl": "of a token asked for",
        "accuracy": "the share of them that is right",
    }
    for name, value in task.evaluate(run.model).items():
        show(name, value, remarks.get(name, ""))


def show_classes(
    run: Run,
    files: Sequence[str],
    split: Literal["test", "valid"],
    limit: int | None,
    output: Path | None,
    batch_tokens: int,
    columns: dict[str, Any],
) -> None:
    """The table of a classifier; ``columns`` says where text and label are, if not where the recipe says."""
    from polyhead.analysis.classes import measure_classes
    from polyhead.data.labelled import open_labelled, read_labelled
    from polyhead.models import Classifier
    from polyhead.train.tasks.classification import labelled_of

    if files:
        recipe = {"text": run.recipe.data.text, "label": run.recipe.data.label} if run.recipe else {}
        given = open_labelled(files, **(recipe | columns))
    elif columns:
        raise UserError(
            "--text and --label are columns of files that are given: polyhead eval RUN FILE --text COLUMN"
        )
    elif run.recipe is None or (split == "test" and not run.recipe.data.test):
        raise no_files(split, "FILE", run)
    else:
        given = labelled_of(run.recipe, split)
    assert isinstance(run.model, Classifier)
    examples, report = read_labelled(given, run.config.labels, limit)
    print(report, file=sys.stderr)
    start = time.perf_counter()
    found = measure_classes(run.model, run.tokenizer, examples, batch_tokens)
    seconds = time.perf_counter() - start
    if found.cut:
        print(
            f"polyhead: cut to {run.config.max_len} tokens: {found.cut:,} of {len(examples):,} texts",
            file=sys.stderr,
        )
    if output is not None:
        output.write_text("".join(f"{label}\n" for label in found.given), encoding="utf-8")
    remarks = {
        "loss": "nats of a text",
        "accuracy": f"the share of {len(examples):,} texts whose class is right",
        "f1": f"the mean F1 of {len(run.config.labels)} classes",
        "mcc": "Matthews correlation",
    }
    for name, value in found.measures.items():
        show(name, value, remarks.get(name, f"F1 of the class {name.removeprefix('f1_')}"))
    show("speed", len(examples) / seconds, f"texts a second, in {seconds:,.1f} s with the tokenizer")


def show_perplexity(run: Run, sources: list[str], references: list[str]) -> None:
    """The line of the perplexity, over the pairs that the model can hold whole."""
    sides = zip(run.tokenizer.encode(sources), run.tokenizer.encode(references), strict=True)
    most = run.config.max_len - run.tokenizer.sides.most
    fits = [max(map(len, pair)) <= most for pair in sides]
    kept = [(a, b) for a, b, fit in zip(sources, references, fits, strict=True) if fit]
    if long := len(fits) - len(kept):
        print(
            f"polyhead: {long:,} pairs have more than {most} tokens a side: translated from "
            "their beginning, and left out of the perplexity",
            file=sys.stderr,
        )
    if kept:
        show("perplexity", run.perplexity([a for a, _ in kept], [b for _, b in kept]), "of a reference token")


def pairs(run: Run, files: Sequence[str], split: str, limit: int | None) -> tuple[list[str], list[str]]:
    """Sources and references of the files given, or of that split of the run's recipe."""
    from polyhead.data.corpus import open_corpus, read_pairs

    given: dict[str, Any] = {}
    if run.recipe is not None:
        data = run.recipe.data
        given = {"format": data.format, "source": data.source, "target": data.target}
        if not files:
            files, given["root"] = getattr(data, split) or [], data.root
    if not files:
        raise no_files(split, "SOURCE TARGET", run)
    sources, references, report = read_pairs(open_corpus(files, **given), limit)
    print(report, file=sys.stderr)
    return sources, references
