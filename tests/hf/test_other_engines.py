import json
import re
from pathlib import Path

import pytest
import transformers
from safetensors import safe_open
from tests.hf.conftest import TEXTS, make
from tests.hf.families.causal_cases import CASES
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import polyhead as ph
from polyhead.cli import main
from polyhead.hf.family import FAMILY

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| `(\w+)` \| `(\w+)` \| (\S+) \| (\S+) \| (\S+) \|$", re.M)
PAGE = {name: cells for name, *cells in ROW.findall((DOCS / "other_engines.md").read_text())}


def test_page_lists_every_family():
    classes = {name: FAMILY.get(name).architectures.get("CausalLM") for name in FAMILY.names()}
    assert {name: cells[0] for name, cells in PAGE.items()} == {n: c for n, c in classes.items() if c}
    assert {cell for cells in PAGE.values() for cell in cells[1:]} == {"own", "transformers", "-"}
    zh = {name: cells for name, *cells in ROW.findall((DOCS / "other_engines.zh-CN.md").read_text())}
    assert zh == PAGE
    wrong = []
    for name, (architecture, vllm, sglang, _) in PAGE.items():
        is_compatible = getattr(transformers, architecture).is_backend_compatible()
        for cell in (vllm, sglang):
            if not (is_compatible if cell == "transformers" else cell == "own" or not is_compatible):
                wrong.append((name, cell))
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGE)
def test_exported_run_opens_in_transformers(name, tmp_path):
    case = CASES[name][1]
    make(tmp_path / "checkpoint", case.config, **case.sizes)
    assert main(["import", str(tmp_path / "checkpoint"), str(tmp_path / "run")]) == 0
    options = ["--to", "hf", "--dtype", "bf16"]
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), *options]) == 0

    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == [PAGE[name][0]] and config["model_type"] == name
    assert type(AutoConfig.from_pretrained(tmp_path / "out")).model_type == name
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert type(model).__name__ == PAGE[name][0]
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with safe_open(tmp_path / "out/model.safetensors", "pt") as weights:
        assert {weights.get_slice(key).get_dtype() for key in weights.keys()} == {"BF16"}  # noqa: SIM118
    tokenizer, run = AutoTokenizer.from_pretrained(tmp_path / "out"), ph.load(tmp_path / "run")
    assert tokenizer(TEXTS, add_special_tokens=False)["input_ids"] == run.tokenizer.encode(TEXTS)
    reference = AutoTokenizer.from_pretrained(tmp_path / "checkpoint")
    assert tokenizer(TEXTS)["input_ids"] == reference(TEXTS)["input_ids"]
