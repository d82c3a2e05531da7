"""``polyhead attention``: show the attention weights of every head."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from polyhead.cli.line_io import escape_terminal, to_one_line
from polyhead.cli.options import ShownTarget, ShownText, TrainedRun, check_kind, check_texts, page_option
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.core.output_paths import check_output_file, run_artifacts

MEAN = "mean"


def run(
    directory: TrainedRun,
    source: ShownText = None,
    target: ShownTarget = None,
    output: Annotated[Path | None, page_option("RUN/attention.html, or RUN/heads.html")] = None,
    kind: Annotated[
        Literal["cross", "encoder", "decoder", "self"] | None,
        typer.Option(
            help="kind of attention shown in the terminal",
            show_default="cross; self if there is no cross-attention",
        ),
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(help="layer shown in the terminal: a number from 1, or mean", show_default="last layer"),
    ] = None,
    head: Annotated[str, typer.Option(help="head shown in the terminal: a number from 0, or mean")] = MEAN,
    all_heads: Annotated[
        bool,
        typer.Option(
            "--heads",
            help="what each head looks at, over 200 validation texts that the run keeps: a page of all heads",
        ),
    ] = False,
) -> None:
    """Show the attention weights of every head of every layer, for a translation or for one text.

    Writes one self-contained page with all kinds of attention, and prints one map in the terminal.

    \b
    polyhead attention runs/multi30k "A dog barks."
    polyhead attention runs/multi30k "A dog barks." "Ein Hund bellt." --kind encoder --layer 1 --head 2
    polyhead attention runs/shakespeare "To be, or not to be"
    polyhead attention runs/multi30k --heads
    """
    check_kind(directory)
    if all_heads:
        write_heads(directory, source, output)
        return
    if source is None:
        raise UserError("TEXT is missing; for what each head looks at, without a text: --heads")
    check_texts("attention", directory, TEXT=source, TARGET=target)
    from polyhead.introspect.attention_map import attention_text, layer_numbers
    from polyhead.run.load import load
    from polyhead.viz.attention_page import write_attention_page
    from polyhead.viz.html_page import find_run_links, link_run_pages

    path = check_output_file(output or directory / "attention.html", inputs=run_artifacts(directory))
    loaded = load(directory, device="cpu")
    maps = loaded.attention_maps(source, target)
    selected_kind: str = kind or next(iter(maps), "attention")
    if selected_kind not in maps:
        available = f"; available: {', '.join(maps)}" if maps else ": no layer has attention"
        raise UserError(f"this model has no {selected_kind} weights to show{available}")
    attention = maps[selected_kind]
    layers = layer_numbers(attention, len(attention.weights))
    heads = range(len(attention.weights[0]))
    layer_index = parse_index("layer", str(layers[-1]) if layer is None else layer, layers)
    head_index = parse_index("head", head, heads)
    translation: str | None = None
    if target is None and "self" not in maps:
        translation = to_one_line(loaded.translate([source])[0])

    def describe_target() -> str:
        if translation is not None:
            return tr("Translated: {text}", text=translation)
        return "" if target is None else tr("Given: {text}", text=target)

    links = find_run_links(directory) if path.parent == directory else None
    write_attention_page(path, list(maps.values()), title=source, lead=describe_target, links=links)
    link_run_pages(directory)
    if translation is not None:
        print(f"{escape_terminal(translation)}\n")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(attention_text(attention, layer_index, head_index, width=width))
    print("\n" + tr("all layers and heads: {path}", path=path))


def write_heads(directory: Path, text: str | None, output: Path | None) -> None:
    """Score the heads over the validation texts that a run keeps, and write their page."""
    from polyhead.introspect.compute_attention import axis_labels
    from polyhead.introspect.head_scores import learn_lexicon, survey_heads
    from polyhead.run.load import load
    from polyhead.run.run_examples import read_examples
    from polyhead.viz.heads_page import HEAD_KINDS, HEADS_PAGE, write_heads_page
    from polyhead.viz.html_page import find_run_links, link_run_pages

    if text is not None:
        raise UserError("--heads reads the validation texts that the run keeps, and takes no TEXT")
    path = check_output_file(output or directory / HEADS_PAGE, inputs=run_artifacts(directory))
    if not (examples := read_examples(directory)):
        raise UserError(f"--heads needs validation texts, and {directory} keeps none")
    loaded = load(directory, device="cpu")
    pairs = [example for example in examples if len(example) == 2 and loaded.kind == "encoder-decoder"]
    tokenizers = loaded.tokenizer, loaded.tokenizer.target_tokenizer
    sides = (
        [axis_labels(tokenizer, ids) for ids in tokenizer.encode(list(texts))]
        for tokenizer, texts in zip(tokenizers, zip(*pairs, strict=True), strict=True)
    )
    lexicon = learn_lexicon(*sides) if pairs else {}
    found = survey_heads(lambda texts: loaded.attention_maps(*texts), examples, lexicon)
    links = find_run_links(directory) if path.parent == directory else None
    write_heads_page(path, found, links)
    link_run_pages(directory)
    for one in found.values():
        kinds = Counter(kind for row in one.kinds for kind in row)
        counts = ", ".join(f"{tr(HEAD_KINDS[kind][1])} {n}" for kind, n in kinds.most_common())
        print(f"{tr(one.typical[0][0].kind)}: {counts}")
    print("\n" + tr("all layers and heads: {path}", path=path))


def parse_index(kind: str, text: str, names: Sequence[int]) -> int | None:
    """Return the index of a layer or head given by its number; None for the mean of all."""
    if text == MEAN:
        return None
    if not text.isdecimal() or int(text) not in names:
        n = len(names)
        available = f"{names[0]} to {names[-1]}" if names[-1] - names[0] < n else ", ".join(map(str, names))
        raise UserError(f"--{kind}: no {kind} {text!r}; available: {available}, and {MEAN}")
    return names.index(int(text))
