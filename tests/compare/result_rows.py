"""Shared by the tests of pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polyhead.compare.budget import Budget
from polyhead.compare.plan import ComparisonPlan, make_plan


def row(name: str, loss: float, **changes: Any) -> dict[str, Any]:
    """A row as results.py makes it."""
    found: dict[str, Any] = {
        "name": name, "base": name == "base", "status": "done", "message": "", "note": "",
        "changes": [f"model.{name}"],
        "seeds": 1, "loss": loss, "ppl": 2.7**loss, "bleu": 40 - 5 * loss, "chrf": 60 - 5 * loss,
        "parameters": 2.9e6 * loss,
        "flops_per_token": 7e6, "times_forward": 3, "steps": 3000.0, "seconds": 600.0, "tokens": 3e6,
        "train_tokens_per_s": 5000.0,
        "decode_tokens_per_s": 2000.0 * loss, "memory": 8e8, "cache_per_token": 4096.0, "cache_constant": 0.0,
        "dead": 0.01,
        "skipped": 0, "fewer": 0, "tokenizer": "bpe", "split": "test", "signatures": {"bleu": "tok:13a"},
            "recipe": "task: <translation>\n",
        "curves": [[[200, 40.0, loss + 4], [1000, 200.0, loss + 0.5], [3000, 600.0, loss]]],
    }  # fmt: skip
    for measure in ("loss", "bleu", "chrf"):
        found |= {f"{measure}_spread": 0.01, f"{measure}_p": None if name == "base" else 0.03}
        found |= {f"{measure}_interval": [found[measure] - 0.5, found[measure] + 0.5]}
    return found | changes


def refused(name: str) -> dict[str, Any]:
    nothing = dict.fromkeys(row("x", 1.0))
    return nothing | {
        "name": name, "status": "refused", "message": "no <such> thing", "skipped": 0, "curves": [],
            "changes": [], "note": "",
    }  # fmt: skip


@pytest.fixture
def plan(place: Path) -> ComparisonPlan:
    return make_plan(
        place / "toy.yaml",
        (),
        (),
        (),
        full_grid=False,
        budget=Budget("time", 600),
        seeds=1,
        match=False,
        out=place / "out",
    )


ROWS = [row("norm=rmsnorm", 1.5), row("base", 1.6), row("a" * 100, 2.5), refused("<b>bad</b>")]
