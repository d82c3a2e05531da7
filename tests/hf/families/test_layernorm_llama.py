import json

import torch
from tests.hf.conftest import make
from tests.hf.families.causal import CausalFamily
from tests.hf.families.causal_cases import CASES
from transformers import AutoModelForCausalLM

import polyhead as ph
from polyhead.cli import main


class TestPhi(CausalFamily, names=["phi"]): ...


class TestPhi3(CausalFamily, names=["phi3"]): ...


def test_longer_max_len_uses_long_factors(tmp_path):
    """The reference takes them for texts beyond the trained length; a run for all texts if its max_len is."""
    case, run_dir, exported_dir = CASES["phi3"][-1], tmp_path / "run", tmp_path / "exported"
    make(tmp_path / "checkpoint", case.config, **case.sizes)
    short = ph.load(tmp_path / "checkpoint")
    assert short.model.config.max_len == 64
    short.save(run_dir)
    config = run_dir / "config.json"
    config.write_text(config.read_text().replace('"max_len": 64', '"max_len": 256'))
    long = ph.load(run_dir)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint").eval()
    ids = torch.randint(5, 300, (2, 200))
    with torch.inference_mode():
        expected, short_logits = reference(ids).logits, short.model(ids[:, :64])
        torch.testing.assert_close(long.model(ids), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(short_logits, reference(ids[:, :64]).logits, rtol=0, atol=1e-5)
        assert (long.model(ids[:, :64]) - short_logits).abs().max() > 1e-3
    short.save(run_dir)
    assert main(["export", str(run_dir), str(exported_dir)]) == 0
    scaling = json.loads((exported_dir / "config.json").read_text())["rope_scaling"]
    assert scaling.keys() == {"type", "short_factor", "long_factor"}, "older readers refuse other keys"
    exported_model = AutoModelForCausalLM.from_pretrained(exported_dir).eval()
    assert exported_model.config.max_position_embeddings == 256
    with torch.inference_mode():
        torch.testing.assert_close(exported_model(ids).logits, expected, rtol=0, atol=1e-6)


class TestStablelm(CausalFamily, names=["stablelm"]): ...


class TestStarcoder2(CausalFamily, names=["starcoder2"]): ...
