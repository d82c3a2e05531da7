"""One experiment from its name to its page and its JSON."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from polyhead.analysis.page import write
from polyhead.core.i18n import tr
from polyhead.fast.memory import tune_memory
from polyhead.lab.catalogue import LAB, Bench
from polyhead.lab.page import lab_page
from polyhead.lab.result import Result
from polyhead.places import directory_place


class Finding(NamedTuple):
    """What an experiment found, how long it took, and where it is written."""

    result: Result
    seconds: float
    page: Path
    json: Path


def run_experiment(name: str, out: Path, bench: Bench) -> Finding:
    """Run one experiment and write OUT/NAME.html and OUT/NAME.json."""
    experiment = LAB.get(name)
    directory_place(out).mkdir(parents=True, exist_ok=True)
    tune_memory()
    start, busy = time.perf_counter(), time.process_time()
    result = experiment(replace(bench, out=out))
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    own = [("--run", bench.run), *(("--text", file) for file in bench.text), ("--limit", bench.limit)]
    about: dict[str, Any] = {
        "name": name, "quick": bench.quick, "seed": bench.seed,
        "given": [word for key, value in own if value is not None for word in (key, str(value))], "seconds": round(seconds, 1),
        "processor_seconds": round(busy, 1), "threads": torch.get_num_threads(),
        "polyhead": version("polyhead"), "torch": torch.__version__,
    }  # fmt: skip
    text = json.dumps(about | result.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
    numbers = write(out / f"{name}.json", text + "\n")
    page = write(out / f"{name}.html", lab_page(result, bench.quick, footnote(about)))
    return Finding(result, seconds, page, numbers)


def footnote(about: dict[str, Any]) -> str:
    """What the page says of its own making."""
    quick = ["--quick"] if about["quick"] else []
    command = ["polyhead", "lab", about["name"], *about["given"], "--seed", str(about["seed"]), *quick]
    return tr(
        "{command}: {seconds} s ({processor} s of processor time), threads: {threads}, Polyhead {polyhead}, torch {torch}. "
        "Times belong to one machine; trust the ratios.",
        command=shlex.join(command),
        seconds=f"{about['seconds']:.0f}",
        processor=f"{about['processor_seconds']:.0f}",
        threads=about["threads"],
        polyhead=about["polyhead"],
        torch=about["torch"],
    )
