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
) -> None:
    """Measure claims of the literature on this machine: each held, did not hold, or stays undecided.

    Each experiment takes a few minutes and writes OUT/NAME.html, a page with plots, and OUT/NAME.json. A claim that
    does not hold is a finding and no failure: the exit code is 0.

    \b
    polyhead lab              the experiments, a line each
    polyhead lab scaling      one of them
    polyhead lab all --out runs/lab
    """
    from polyhead.lab.catalogue import LAB, Bench, question

    if name is None:
        width = max(map(len, LAB.names()))
        print("\n".join(f"{each:<{width}}  {question(each)}" for each in LAB.names()))
        return
    if name != "all" and name not in LAB.names():
        raise unknown("experiment", name, {"all", *LAB.names()})
    from polyhead.lab.run import run_experiment

    bench = Bench(seed, quick, lambda line: typer.echo(f"  {line}", err=True))
    for number, each in enumerate(LAB.names() if name == "all" else [name]):
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
