"""Run one experiment by name and write its page and its JSON file."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from polyhead.core.i18n import tr
from polyhead.core.output_paths import check_output_dir
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.viz.html_page import save_page
from polyhead_lab.page import render_lab_page
from polyhead_lab.registry import EXPERIMENTS, ExperimentResult, LabContext


class ExperimentOutput(NamedTuple):
    """Result of an experiment, its duration, and its files."""

    result: ExperimentResult
    seconds: float
    page: Path
    json: Path


def run_experiment(name: str, out: Path, lab: LabContext) -> ExperimentOutput:
    """Run one experiment and write OUT/NAME.html and OUT/NAME.json."""
    experiment = EXPERIMENTS.get(name)
    check_output_dir(out).mkdir(parents=True, exist_ok=True)
    tune_malloc()
    start, busy = time.perf_counter(), time.process_time()
    result = experiment(replace(lab, out=out))
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    options = [("--run", lab.run), *(("--text", file) for file in lab.text), ("--limit", lab.limit)]
    facts: dict[str, Any] = {
        "name": name, "quick": lab.quick, "seed": lab.seed,
        "given": [word for key, value in options if value is not None for word in (key, str(value))],
            "seconds": round(seconds, 1),
        "processor_seconds": round(busy, 1), "threads": torch.get_num_threads(),
        "polyhead": version("polyhead"), "torch": torch.__version__,
    }  # fmt: skip
    text = json.dumps(facts | result.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
    numbers = save_page(out / f"{name}.json", text + "\n")
    page = save_page(out / f"{name}.html", render_lab_page(result, lab.quick, format_footnote(facts), name))
    return ExperimentOutput(result, seconds, page, numbers)


def format_footnote(facts: dict[str, Any]) -> str:
    """Footer of the page: the command, times and versions."""
    quick = ["--quick"] if facts["quick"] else []
    command = [
        "polyhead",
        "experiments",
        facts["name"],
        *facts["given"],
        "--seed",
        str(facts["seed"]),
        *quick,
    ]
    return tr(
        "{command}: {seconds} s ({processor} s of CPU time), threads: {threads}, Polyhead {polyhead}, "
        "torch {torch}. Times depend on the machine; ratios are more reliable.",
        command=shlex.join(command),
        seconds=f"{facts['seconds']:.0f}",
        processor=f"{facts['processor_seconds']:.0f}",
        threads=facts["threads"],
        polyhead=facts["polyhead"],
        torch=facts["torch"],
    )
