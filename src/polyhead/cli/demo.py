"""``polyhead demo``: the whole way from text to a judged translator, on a corpus that is included."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyhead.cli.guard import INTERRUPTED
from polyhead.cli.lines import harmless, one_line
from polyhead.core.i18n import tr
from polyhead.errors import UserError
from polyhead.places import directory_place
from polyhead.text.control import spelled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from polyhead.demo import Judged
    from polyhead.recipe import Recipe
    from polyhead.run import Run
    from polyhead.train.reporting import Row

SHOWN = 5  # examples


def run(
    source: Annotated[str, typer.Option(metavar="LOCALE", help="translate from, e.g. en, fr, pt_BR")] = "en",
    target: Annotated[str, typer.Option(metavar="LOCALE", help="translate to, e.g. zh, de, ja")] = "zh",
    translate: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="print the translation of this text, and nothing else"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="directory of the run", show_default="runs/demo, runs/demo-fr-de, ..."
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="train anew where a finished run lies")] = False,
) -> None:
    """Train a translator in a few minutes, from scratch, and show what it learned.

    The text is made on the spot: dates, amounts, spans of time and lists, worded in two languages by Unicode's
    CLDR data. Ctrl-C saves; the same command goes on from there. A finished run is used again.

    \b
    polyhead demo
    polyhead demo --translate "March 3, 2027"
    polyhead demo --source fr --target de
    """
    if translate is not None and not translate.strip():
        raise UserError("--translate: there is nothing to translate")
    out = directory_place(out or default_out(source, target))
    from rich.console import Console

    from polyhead import demo

    console = Console(stderr=translate is not None, highlight=False)
    recipe = demo.open_recipe(source, target, out)
    if again and (demo.begun(out) or demo.finished(out)):
        demo.forget(out)
        recipe = demo.open_recipe(source, target, out)
    told = translate is None or not demo.finished(out)
    if told:
        introduce(console, recipe)
    trained, outcome = demo.obtain(recipe, UntilTrained())
    if outcome is not None and outcome.how == "interrupted":
        console.print(tr("The same command goes on from there."))
        raise typer.Exit(INTERRUPTED)
    if told:
        conclude(console, trained, recipe)
    if translate is not None:
        (output,) = trained.translate([translate])
        print(harmless(one_line(output)))


class UntilTrained:
    """The reporter of every training, silent once it is over: the demo tells the results in its own way."""

    def __init__(self) -> None:
        from polyhead.train.reporting import at_terminal

        self.inner, self.over = at_terminal(), False

    def train(self, row: Row) -> None:
        self.inner.train(row)
        self.over = row["step"] == row["steps"]

    def valid(self, row: Row) -> None:
        self.inner.valid(row)

    def say(self, line: str) -> None:
        if not self.over:
            self.inner.say(line)

    def close(self) -> None:
        self.inner.close()


def introduce(console: Console, recipe: Recipe) -> None:
    """What is going to happen, and the text it happens to, which is written here if it is not there yet."""
    from rich.markup import escape
    from rich.text import Text

    from polyhead import demo
    from polyhead.data.corpus import read_pairs
    from polyhead.train.tasks.translation import corpus_of

    data, out = recipe.data, escape(str(recipe.out))
    languages = {"source": demo.title(data.source_lang), "target": demo.title(data.target_lang)}
    console.print(f"[bold]{tr('Polyhead demo: {source} to {target}', **languages)}[/bold]")
    if demo.finished(recipe.out):
        console.print(tr("{out} holds a finished run, which is used again; --again trains anew.", out=out))
        return
    if demo.begun(recipe.out):
        goes_on = tr("{out} holds an interrupted run, which goes on; --again begins anew.", out=out)
        console.print(f"{goes_on}\n")
        return
    console.print(tr("A small Transformer learns to translate, from nothing, on this machine.") + "\n")
    demo.write_text(recipe)
    sources, targets, _ = read_pairs(corpus_of(recipe, "train"))
    table = grid()
    for row in demo.spread(sources, SHOWN):
        table.add_row("", Text(sources[row]), Text(targets[row]))
    pairs = tr("{count:,} pairs, worded by Unicode's CLDR data, such as", count=len(sources))
    console.print(f"[bold]{tr('The text')}[/bold]  {pairs}\n")
    console.print(table)
    saves = tr("Ctrl-C saves, and the same command goes on")
    console.print(f"\n[bold]{tr('Training')}[/bold]  {saves}\n")


def conclude(console: Console, run: Run, recipe: Recipe) -> None:
    """Judge the run, write the report, and tell both."""
    from rich.text import Text

    from polyhead import demo
    from polyhead.analysis.heat_map import columns

    judged = demo.judge(run, recipe)
    rows = demo.spread(judged.sources, SHOWN)
    page = demo.write_page(run, recipe, judged, rows)
    n, bleu = len(judged.references), judged.bleu
    unseen = tr("{count} that training never saw; {shown} of all lengths", count=n, shown=SHOWN)
    console.print(f"\n[bold]{tr('Held-out pairs')}[/bold]  {unseen}\n")
    console.print(examples(judged, rows))
    right = tr("{right} of {count} equal their reference", right=judged.right, count=n)
    exact = tr("Exact match")
    console.print(f"\n  {exact}{' ' * (11 - columns(exact))}  [bold]{judged.exact:.1f} %[/bold]  {right}")
    console.print(f"  BLEU         [bold]{bleu.value:.1f}[/bold]    [dim]{bleu.signature}[/dim]")
    if baseline := judged.baselines.get("bleu"):
        console.print(
            "              ", Text(baseline.describe(f"{baseline.value:.1f}")), sep="", soft_wrap=True
        )
    if judged.verdict:
        console.print(Text(f"\n{judged.verdict}", "bold yellow"), soft_wrap=True)
    console.print(f"\n[bold]{tr('Report')}[/bold]  ", Text(str(page)), sep="", soft_wrap=True)
    about = tr("how it learned, every mistake, and what each head looks at")
    console.print(f"        {about}\n")
    console.print(f"[bold]{tr('Next')}[/bold]")
    for command in commands(recipe, judged.sources[rows[1]]):
        console.print(f"  {command}", soft_wrap=True, markup=False)


def examples(judged: Judged, rows: Sequence[int]) -> Table:
    """Some translations beside their references."""
    from rich.text import Text

    table = grid("", "", tr("Source"), tr("Translation"), tr("Reference"))
    for row in rows:
        output, reference = judged.outputs[row], judged.references[row]
        mark = Text("✓", "green") if output == reference else Text("✗", "red")
        table.add_row("", mark, *map(Text, map(spelled, (judged.sources[row], output, reference))))
    return table


def grid(*headings: str) -> Table:
    """Columns without lines between them; what does not fit goes on in the next line."""
    from rich.table import Table

    table = Table(
        box=None, show_header=bool(headings), header_style="dim", pad_edge=False, padding=(0, 2, 0, 0)
    )
    for heading in headings or ("", "", ""):
        table.add_column(heading, overflow="fold")
    return table


def commands(recipe: Recipe, text: str) -> list[str]:
    """What to try next, ready to be copied."""
    data, out = recipe.data, str(recipe.out)
    source, target = data.source_lang, data.target_lang
    chosen = [] if (source, target) == ("en", "zh") else ["--source", source, "--target", target]
    if recipe.out != default_out(source, target):
        chosen += ["--out", out]
    return [
        shlex.join(["polyhead", "demo", *chosen, "--translate", text]),
        shlex.join(["polyhead", "eval", out, "--beam-size", "4"]),
        shlex.join(
            ["polyhead", "train", f"{out}/recipe.yaml", "model.position=sinusoidal", f"out={out}-sinusoidal"]
        ),
        "polyhead demo --source fr --target de",
    ]


def default_out(source: str, target: str) -> Path:
    """Where the run of a pair of locales lies."""
    return Path("runs") / ("demo" if (source, target) == ("en", "zh") else f"demo-{source}-{target}")
