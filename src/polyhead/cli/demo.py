"""``polyhead demo``: train and evaluate a translator on an included corpus."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyhead.cli.error_handler import EXIT_INTERRUPTED
from polyhead.cli.line_io import escape_terminal, to_one_line
from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.core.output_paths import check_output_dir
from polyhead.tokenizers.display import escape_controls

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from polyhead.cli.demo_run import DemoEvaluation
    from polyhead.config.recipe import Recipe
    from polyhead.run.run import Run

NUM_EXAMPLES = 5


def run(
    source: Annotated[str, typer.Option(metavar="LOCALE", help="source language, e.g. en, fr, pt_BR")] = "en",
    target: Annotated[str, typer.Option(metavar="LOCALE", help="target language, e.g. zh, de, ja")] = "zh",
    translate: Annotated[
        str | None, typer.Option(metavar="TEXT", help="print only the translation of this text")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="path of the run", show_default="runs/demo, runs/demo-fr-de, ..."),
    ] = None,
    retrain: Annotated[bool, typer.Option("--again", help="train again if there is a finished run")] = False,
) -> None:
    """Train a translation model from scratch in a few minutes, and show what it learned.

    The text is synthetic: dates, amounts, time spans and lists, generated in two languages from Unicode's
    CLDR data. Ctrl-C saves; the same command resumes. A finished run is reused.

    \b
    polyhead demo
    polyhead demo --translate "March 3, 2027"
    polyhead demo --source fr --target de
    """
    if translate is not None and is_blank(translate):
        raise UserError("--translate: expected text")
    out = check_output_dir(output or default_out(source, target))
    from rich.console import Console

    from polyhead.cli import demo_run

    console = Console(stderr=translate is not None, highlight=False)
    recipe = demo_run.open_recipe(source, target, out)
    if retrain and (demo_run.can_resume(out) or demo_run.is_finished(out)):
        demo_run.reset_training(out)
        recipe = demo_run.open_recipe(source, target, out)
    is_verbose = translate is None or not demo_run.is_finished(out)
    if is_verbose:
        print_introduction(console, recipe)
    trained, outcome = demo_run.load_or_train(recipe, demo_run.TrainingOnlyReporter())
    if outcome is not None and outcome.status == "interrupted":
        console.print(tr("The same command continues from there."))
        raise typer.Exit(EXIT_INTERRUPTED)
    if is_verbose:
        print_results(console, trained, recipe)
    if translate is not None:
        (translation,) = trained.translate([translate])
        print(escape_terminal(to_one_line(translation)))


def print_introduction(console: Console, recipe: Recipe) -> None:
    """Print what the demo will do, and examples of the text, which is written here if it does not exist."""
    from rich.markup import escape
    from rich.text import Text

    from polyhead.cli import demo_run
    from polyhead.data.readers.parallel_corpus import read_pairs
    from polyhead.train.tasks.translation import open_split_corpus

    data, out = recipe.data, escape(str(recipe.out))
    languages = {
        "source": demo_run.locale_title(data.source_lang),
        "target": demo_run.locale_title(data.target_lang),
    }
    console.print(f"[bold]{tr('Polyhead demo: {source} to {target}', **languages)}[/bold]")
    if demo_run.is_finished(recipe.out):
        console.print(tr("{out} has a finished run, which is reused; --again trains a new one.", out=out))
        return
    if demo_run.can_resume(recipe.out):
        message = tr("{out} has an interrupted run, which continues; --again starts over.", out=out)
        console.print(f"{message}\n")
        return
    console.print(tr("Trains a small translation model from scratch on this machine.") + "\n")
    demo_run.write_demo_corpus(recipe)
    sources, targets, _ = read_pairs(open_split_corpus(recipe, "train"))
    table = make_table()
    for row in demo_run.select_rows_by_length(sources, NUM_EXAMPLES):
        table.add_row("", Text(sources[row]), Text(targets[row]))
    pairs = tr("{count:,} pairs, generated from Unicode's CLDR data, e.g.", count=len(sources))
    console.print(f"[bold]{tr('The text')}[/bold]  {pairs}\n")
    console.print(table)
    hint = tr("Ctrl-C saves, and the same command continues")
    console.print(f"\n[bold]{tr('Training')}[/bold]  {hint}\n")


def print_results(console: Console, run: Run, recipe: Recipe) -> None:
    """Evaluate the run, write the report, and print both."""
    from rich.cells import cell_len
    from rich.text import Text

    from polyhead.cli import demo_run

    evaluation = demo_run.evaluate_demo(run, recipe)
    rows = demo_run.select_rows_by_length(evaluation.sources, NUM_EXAMPLES)
    page = demo_run.write_demo_report(run, recipe, evaluation, rows)
    n, bleu = len(evaluation.references), evaluation.bleu
    description = tr("{count} not in the training data; {shown} of all lengths", count=n, shown=NUM_EXAMPLES)
    console.print(f"\n[bold]{tr('Held-out pairs')}[/bold]  {description}\n")
    console.print(make_examples_table(evaluation, rows))
    num_correct = tr("{right} of {count} equal their reference", right=evaluation.n_correct, count=n)
    title = tr("Exact match")
    console.print(
        f"\n  {title}{' ' * (11 - cell_len(title))}  [bold]{evaluation.exact_match:.1f} %[/bold]  "
        f"{num_correct}"
    )
    console.print(f"  BLEU         [bold]{bleu.value:.1f}[/bold]    [dim]{bleu.signature}[/dim]")
    if baseline := evaluation.baselines.get("bleu"):
        console.print(
            "              ", Text(baseline.describe(f"{baseline.value:.1f}")), sep="", soft_wrap=True
        )
    if evaluation.verdict:
        console.print(Text(f"\n{evaluation.verdict}", "bold yellow"), soft_wrap=True)
    console.print(f"\n[bold]{tr('Report')}[/bold]  ", Text(str(page)), sep="", soft_wrap=True)
    contents = tr("learning curves, all mistakes, and the attention of every head")
    console.print(f"        {contents}\n")
    console.print(f"[bold]{tr('Next')}[/bold]")
    for command in suggest_commands(recipe, evaluation.sources[rows[1]]):
        console.print(f"  {command}", soft_wrap=True, markup=False)


def make_examples_table(evaluated_run: DemoEvaluation, rows: Sequence[int]) -> Table:
    """Return a table of translations and their references."""
    from rich.text import Text

    table = make_table("", "", tr("Source"), tr("Translation"), tr("Reference"))
    for row in rows:
        output, reference = evaluated_run.outputs[row], evaluated_run.references[row]
        mark = Text("✓", "green") if output == reference else Text("✗", "red")
        table.add_row(
            "", mark, *map(Text, map(escape_controls, (evaluated_run.sources[row], output, reference)))
        )
    return table


def make_table(*headings: str) -> Table:
    """Return a table without lines between its columns; long cells are folded."""
    from rich.table import Table

    table = Table(
        box=None, show_header=bool(headings), header_style="dim", pad_edge=False, padding=(0, 2, 0, 0)
    )
    for heading in headings or ("", "", ""):
        table.add_column(heading, overflow="fold")
    return table


def suggest_commands(recipe: Recipe, text: str) -> list[str]:
    """Return the next commands to try, ready to be copied."""
    data, out = recipe.data, str(recipe.out)
    source, target = data.source_lang, data.target_lang
    arguments = [] if (source, target) == ("en", "zh") else ["--source", source, "--target", target]
    if recipe.out != default_out(source, target):
        arguments += ["--output", out]
    return [
        shlex.join(["polyhead", "demo", *arguments, "--translate", text]),
        shlex.join(["polyhead", "eval", out, "--beam-size", "4"]),
        shlex.join(
            ["polyhead", "train", f"{out}/recipe.yaml", "model.position=sinusoidal", f"out={out}-sinusoidal"]
        ),
        "polyhead demo --source fr --target de",
    ]


def default_out(source: str, target: str) -> Path:
    """Return the default run directory of a pair of locales."""
    return Path("runs") / ("demo" if (source, target) == ("en", "zh") else f"demo-{source}-{target}")
