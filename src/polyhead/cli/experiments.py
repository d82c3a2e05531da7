"""``polyhead experiments``: measure claims of the literature on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyhead.cli.formatting import wrap_paragraph
from polyhead.core.errors import unknown_name_error

if TYPE_CHECKING:
    from polyhead_lab.run import ExperimentOutput


def run(
    name: Annotated[
        str | None, typer.Argument(help="name of an experiment, or 'all'; default: list the experiments")
    ] = None,
    output: Annotated[Path, typer.Option(metavar="DIR", help="output directory of pages and JSON")] = Path(
        "lab"
    ),
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="random seed of weights and data")] = 1,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="run at a fraction of the size, as a smoke test; the verdicts mean nothing"
        ),
    ] = False,
    run_directory: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="caches, paging: path of a trained run to measure, instead of a small model trained here",
        ),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="path of the text for --run; for a translation model, --text SOURCE --text TARGET",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="number of texts of --text that are measured, from the first; an interval needs two",
            show_default="depends on the experiment",
        ),
    ] = None,
) -> None:
    """Test claims of the literature on this machine: each holds, does not hold, or stays undecided.

    Each experiment takes a few minutes and writes OUT/NAME.html, a page with plots, and OUT/NAME.json. A
    claim that does not hold is a result, not a failure: the exit code is 0. Two experiments, caches and
    paging, can be run on your own language model or translation model and text.

    \b
    polyhead experiments              the experiments, a line each
    polyhead experiments scaling      one of them
    polyhead experiments all --output runs/lab
    polyhead experiments caches --run runs/wikitext-2 --text test.txt
    polyhead experiments paging --run runs/multi30k --text test.en --text test.de
    """
    from polyhead_lab.registry import EXPERIMENTS, LabContext, check_run_options, describe_experiment

    if name is None:
        width = max(map(len, EXPERIMENTS.names()))
        print(
            "\n".join(
                f"{experiment:<{width}}  {describe_experiment(experiment)}"
                for experiment in EXPERIMENTS.names()
            )
        )
        return
    if name != "all" and name not in EXPERIMENTS.names():
        raise unknown_name_error("experiment", name, {"all", *EXPERIMENTS.names()})
    from polyhead_lab.run import run_experiment

    context = LabContext(
        seed, quick, lambda line: typer.echo(f"  {line}", err=True), run_directory, tuple(text or ()), limit
    )
    names = EXPERIMENTS.names() if name == "all" else [name]
    check_run_options(names, context)
    for number, experiment in enumerate(names):
        if number:
            print()
        print(
            "\n".join(format_finding(experiment, run_experiment(experiment, output, context), quick)),
            flush=True,
        )


def format_finding(name: str, finding: ExperimentOutput, quick: bool) -> list[str]:
    """Format a finding as lines for a terminal."""
    result = finding.result
    lines = [f"{name}: {result.title}"]
    if quick:
        lines.append("  quick run: a fraction of the size; the verdicts below mean nothing")
    for claim in result.claims:
        lines += [
            "",
            *wrap_paragraph(f"{claim.verdict.upper() + claim.scope:<12}  {claim.sentence}", "  ", " " * 16),
            *wrap_paragraph(f"[{claim.source}]", " " * 16, " " * 16),
            *wrap_paragraph(claim.measurement, " " * 16, " " * 16),
        ]
    return [*lines, "", f"  {finding.seconds:.0f} s; page {finding.page}, data {finding.json}"]
