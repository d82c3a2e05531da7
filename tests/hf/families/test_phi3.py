"""Tests of hf/families/phi3.py."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tests.hf.conftest import make
from tests.hf.families.causal import CausalFamily
from tests.hf.families.causal_cases import CASES
from transformers import AutoModelForCausalLM

import polyhead as ph
from polyhead.cli import main


class TestPhi3(CausalFamily):
    names = ("phi3",)


def test_with_room_for_more_than_it_was_trained_with_phi_reads_by_the_long_factors(tmp_path: Path) -> None:
    """As the reference reads texts longer than that; up to there it takes the short ones, and so do we at
    first.
    """
    case = CASES["phi3"][-1]
    make(tmp_path / "theirs", case.config, **case.sizes)
    ours = ph.load(tmp_path / "theirs")
    assert ours.model.config.max_len == 64
    ours.save(tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"max_len": 64', '"max_len": 256'))
    longer = ph.load(tmp_path / "run")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()
    ids = torch.randint(5, 300, (2, 200))
    with torch.inference_mode():
        torch.testing.assert_close(longer.model(ids), theirs(ids).logits, rtol=0, atol=1e-5)
        torch.testing.assert_close(ours.model(ids[:, :64]), theirs(ids[:, :64]).logits, rtol=0, atol=1e-5)
        assert (longer.model(ids[:, :64]) - ours.model(ids[:, :64])).abs().max() > 1e-3
    ours.save(tmp_path / "run")
    out = str(tmp_path / "again")
    assert main(["export", str(tmp_path / "run"), out]) == 0
    said = json.loads((tmp_path / "again" / "config.json").read_text())
    assert said["rope_scaling"].keys() == {"type", "short_factor", "long_factor"}, "older readers refuse more"
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    assert again.config.max_position_embeddings == 256
    with torch.inference_mode():
        torch.testing.assert_close(again(ids).logits, theirs(ids).logits, rtol=0, atol=1e-6)
