"""``polyhead lab``: claims of the literature, measured here."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyhead.errors import unknown

if TYPE_CHECKING:
    from polyhead.lab.run import Finding

WIDTH = 110


def run(
    name: Annotated[
        str | None, typer.Argument(help="an experiment, or 'all'; their list if not given")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="where pages and JSON are written")] = Path("lab"),
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="of weights and data")] = 1,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="a fraction of the size, to see that it runs; verdicts mean nothing"),
    ] = False,
    trained: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="caches, paging: a trained run to measure, in place of a small model made here",
        ),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="text for --run; of a translator give source and target, each with --text"
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="texts of --text that are measured, the first ones; an interval takes two",
            show_default="by experiment",
        ),
    ] = None,
) -> None:
    """Measure claims of the literature on this machine: each held, did not hold, or stays undecided.

    Each experiment takes a few minutes and writes OUT/NAME.html, a page with plots, and OUT/NAME.json. A claim that
    does not hold is a finding and no failure: the exit code is 0. Two of them, caches and paging, can be made on your own
    language model or translator and text.

    \b
    polyhead lab              the experiments, a line each
    polyhead lab scaling      one of them
    polyhead lab all --out runs/lab
    polyhead lab caches --run runs/wikitext-2 --text test.txt
    polyhead lab paging --run runs/multi30k --text test.en --text test.de
    """
    from polyhead.lab.catalogue import LAB, Bench, check_own, question

    if name is None:
        width = max(map(len, LAB.names()))
        print("\n".join(f"{each:<{width}}  {question(each)}" for each in LAB.names()))
        return
    if name != "all" and name not in LAB.names():
        raise unknown("experiment", name, {"all", *LAB.names()})
    from polyhead.lab.run import run_experiment

    bench = Bench(
        seed, quick, lambda line: typer.echo(f"  {line}", err=True), trained, tuple(text or ()), limit
    )
    names = LAB.names() if name == "all" else [name]
    check_own(names, bench)
    for number, each in enumerate(names):
        if number:
            print()
        print("\n".join(told(each, run_experiment(each, out, bench), quick)), flush=True)


def told(name: str, finding: Finding, quick: bool) -> list[str]:
    """A finding as lines for a terminal."""
    result = finding.result
    lines = [f"{name}: {result.title}"]
    if quick:
        lines.append("  quick run: a fraction of the size; the verdicts below mean nothing")
    for claim in result.claims:
        lines += [
            "",
            *wrapped(f"{claim.verdict.upper():<12}  {claim.sentence}", "  ", " " * 16),
            *wrapped(f"[{claim.source}]", " " * 16, " " * 16),
            *wrapped(claim.measured, " " * 16, " " * 16),
        ]
    return [*lines, "", f"  {finding.seconds:.0f} s; page {finding.page}, data {finding.json}"]


def wrapped(text: str, first: str, rest: str) -> list[str]:
    """The text in lines that fit a terminal."""
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
