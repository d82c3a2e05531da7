"""Tests of nn/skip_init.py."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.run.run_helpers import saved as saved

import polyhead as ph


def test_nothing_is_drawn_for_weights_that_are_read(saved: Path) -> None:
    before = torch.get_rng_state()
    ph.load(saved)
    assert torch.equal(torch.get_rng_state(), before)
