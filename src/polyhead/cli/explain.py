"""``polyhead explain``: walk a text through a model, number by number, on one page."""

from __future__ import annotations

from os.path import isfile
from pathlib import Path
from typing import Annotated

import typer

from polyhead.cli.options import TrainedRun, check_kind, check_texts, page_option
from polyhead.core.errors import UserError
from polyhead.core.i18n import get_language, tr
from polyhead.core.output_paths import check_output_file, run_artifacts
from polyhead.core.progress import make_progress


def run(
    directory: TrainedRun,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            help="source text; for a model other than an encoder-decoder, the text; "
            "or a second run, before TEXT, to see both side by side",
            show_default="a short validation text that the run keeps",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="translation of the source text; for a classifier, second text of a pair",
            show_default="the translation in the run's validation text, else the run's own",
        ),
    ] = None,
    other: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="another text of as many tokens: which token and layer carries the difference",
            show_default=False,
        ),
    ] = None,
    second_target: Annotated[str | None, typer.Argument(hidden=True)] = None,
    output: Annotated[Path | None, page_option("RUN/explain.html, or RUN/explain-two.html")] = None,
    first: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="first token that the page shows of a long text",
            show_default="such that the end of a language model's text is shown, else the beginning",
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="tokens that the page shows of each text",
            show_default="as many as keep it below 5 MB, at most 64",
        ),
    ] = None,
) -> None:
    """Walk a text through a model, number by number: one page that works offline.

    The page shows every step of the forward pass in order, from tokens to the probabilities of the next one,
    with every number that the model computes, and what its search or sampling considered.

    \b
    polyhead explain runs/multi30k
    polyhead explain runs/multi30k "A dog barks."
    polyhead explain runs/multi30k "A dog barks." "Ein Hund bellt." --output dog.html
    polyhead explain runs/shakespeare "To be, or not to be" --lang zh
    polyhead explain runs/pre-norm runs/post-norm "A dog barks."
    """
    runs, name = [directory], "explain.html"
    if source and isfile(Path(source) / "config.json"):  # no error for a long text, as is_file() has
        runs, name, source, target = [directory, Path(source)], "explain-two.html", target, second_target
    elif second_target is not None:
        raise UserError(f"unexpected argument {second_target!r}; expected RUN, TEXT and TARGET")
    for one in runs:
        check_kind(one)
    check_texts("explain", directory, **{"TEXT": source, "TARGET": target, "--other": other})
    from polyhead.explain.chapters import load_chapters
    from polyhead.explain.document import explain
    from polyhead.explain.inputs import choose_text
    from polyhead.explain.marks import read_marks
    from polyhead.explain.walk_page import render_pair_page, render_walk_page
    from polyhead.run.load import load
    from polyhead.run.run_examples import read_examples
    from polyhead.viz.html_page import find_run_links, link_run_pages, save_page

    path = check_output_file(output or directory / name, inputs=run_artifacts(directory))
    examples = [example for one in runs for example in read_examples(one)]
    if source is None and not examples:
        raise UserError(f"TEXT is missing, and {directory} keeps no validation text")
    chapters = {language: load_chapters(language) for language in ("en", "zh")}
    links = find_run_links(directory) if path.parent == directory and len(runs) == 1 else None
    pages = []
    for one in runs:
        loaded = load(one, device="cpu")
        if source is None:
            source, target = choose_text(examples, loaded.kind)
        document = explain(
            loaded,
            source,
            target,
            other=other,
            first=None if first is None else first - 1,
            n_shown=tokens,
            examples=examples,
            progress=make_progress(),
        )
        # not part of explain(): a service may be for people who must not read the text that the run keeps
        document["learnt"] = read_marks(one)
        document["run"]["name"] = one.name if len({run.name for run in runs}) == len(runs) else str(one)
        pages.append(render_walk_page(document, language=get_language(), chapters=chapters, links=links))
        counts = {"steps": len(document["walk"]), "layers": len(document["layers"])}
        print(tr("{steps} steps in {layers} layers: {path}", **counts, path=path))
    save_page(path, render_pair_page(pages, [str(one) for one in runs]) if len(runs) > 1 else pages[0])
    link_run_pages(directory)
