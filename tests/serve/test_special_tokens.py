"""Law: a checkpoint that ``generate`` opens is served with the same text, whichever tokens its files name."""

from itertools import chain, combinations

import pytest
from tests.hf.conftest import edit_json, make
from tests.serve.conftest import serve_run

import polyhead as ph

OPTIONAL = {"bos_token": "<s>", "pad_token": "<pad>", "unk_token": "<unk>"}
SUBSETS = list(chain.from_iterable(combinations(OPTIONAL, n) for n in range(4)))


@pytest.mark.parametrize("names", SUBSETS, ids="-".join)
def test_checkpoint_that_generates_is_served(tmp_path, names):
    make(tmp_path, "GPT2Config", n_embd=16, n_layer=2, n_head=2, n_positions=32, files_only=True)
    ids = [f"{role}_id" for role in OPTIONAL]
    for file in ("config.json", "generation_config.json"):
        edit_json(tmp_path / file, **dict.fromkeys(ids))
    edit_json(tmp_path / "tokenizer_config.json", OPTIONAL, **{role: OPTIONAL[role] for role in names})
    run, prompts = ph.load(tmp_path), ["a dog", "two red dogs at sea"]
    assert set(run.tokenizer.role_ids) - {"mask_token"} == {"eos_token", *names}
    with serve_run(run) as client:
        body = {"prompt": prompts, "max_tokens": 9, "temperature": 0, "logprobs": 1}
        choices = client.ask("/v1/completions", body).json()["choices"]
    assert [choice["text"] for choice in choices] == run.generate(prompts, max_new_tokens=9)
    assert all(choice["logprobs"]["tokens"] for choice in choices)
