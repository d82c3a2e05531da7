"""Causal models of a family against the reference implementation: the same logits, text and files."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.hf.conftest import TEXTS, make
from tests.hf.families.causal_cases import CASES, Case
from tests.hf.families.laws import FamilyLaws, over
from transformers import AutoModelForCausalLM, AutoTokenizer

import polyhead as ph
from polyhead import Choice
from polyhead.cache.factory import make_cache
from polyhead.cli import main
from polyhead.generation.batch_decode import beam_continuations, restore_order
from polyhead.generation.settings import with_overrides
from polyhead.hf.load import load_model
from polyhead.kernels.pack_model import pack_model

NORMED = {"cohere": 2, "stablelm": 3, "phi": 3}  # those with normalised queries and keys
OLDER = ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor")


def every(names: Iterable[str]) -> list[Any]:
    return [pytest.param(case, id=f"{name}-{i}") for name in names for i, case in enumerate(CASES[name])]


def second(names: Iterable[str]) -> list[Any]:
    """One row of each family, and one more of those with normalised queries and keys."""
    normed = [(name, NORMED[name]) for name in names if name in NORMED]
    rows = [pytest.param(CASES[name][1], id=name) for name in names]
    return rows + [pytest.param(CASES[name][i], id=f"{name}-normed") for name, i in normed]


def rotated(names: Iterable[str]) -> list[Any]:
    return [case for case in every(names) if "'rope_parameters': " in str(case)]


class CausalFamily(FamilyLaws):
    @over(every)
    def test_logits_are_those_of_the_reference(self, case: Case, tmp_path: Path) -> None:
        theirs, tokens = make(tmp_path, case.config, **case.sizes), torch.randint(5, 300, (3, 20))
        ours = load_model(tmp_path)
        with torch.no_grad():
            torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("side", ["left", "right"])
    @over(second)
    def test_padding_on_either_side_does_not_matter(self, case: Case, side: str, tmp_path: Path) -> None:
        theirs, lengths = make(tmp_path, case.config, **case.sizes), torch.tensor([12, 7, 1])
        ours, place = load_model(tmp_path), torch.arange(12)
        real = place >= 12 - lengths[:, None] if side == "left" else place < lengths[:, None]
        tokens = torch.randint(5, 300, (3, 12))
        pos = real.long().cumsum(1) - 1
        with torch.no_grad():
            logits = ours(tokens, pos.masked_fill(~real, -1))
            wanted = theirs(tokens, attention_mask=real.long(), position_ids=pos.clamp(min=0)).logits
            torch.testing.assert_close(logits[real], wanted[real], rtol=1e-5, atol=1e-5)
            for row in range(3):
                alone = ours(tokens[row][real[row]][None])
                torch.testing.assert_close(logits[row][real[row]], alone[0], rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("cache", ["growing", "static", "paged"])
    @over(second)
    def test_steps_give_the_logits_of_the_reference_beyond_any_window(
        self, case: Case, cache: str, tmp_path: Path
    ) -> None:
        theirs, tokens = make(tmp_path, case.config, **case.sizes), torch.randint(5, 300, (2, 20))
        plain = load_model(tmp_path)
        with torch.inference_mode():
            wanted = theirs(tokens).logits
            for model in (plain, pack_model(copy.deepcopy(plain))):
                held, found = make_cache(Choice(cache), model.cache_shape, 2, 20), []
                for start, end in ((0, 3), *((t, t + 1) for t in range(3, 20))):
                    pos = torch.arange(start, end).expand(2, -1)
                    held.prepare_step(range(2), pos)
                    found.append(model.decode(tokens[:, start:end], pos, held))
                torch.testing.assert_close(torch.cat(found, 1), wanted, rtol=1e-5, atol=1e-5)

    @over(second)
    def test_greedy_text_is_that_of_the_reference(self, case: Case, tmp_path: Path) -> None:
        theirs, run = make(tmp_path, case.config, **case.sizes), ph.load(tmp_path)
        prompts = ["the king", "a dog barks at"]
        assert run.generation.temperature == 0  # as theirs: nothing says that tokens are drawn
        for ngram in (0, 2):
            said = run.generate(prompts, max_new_tokens=12, no_repeat_ngram_size=ngram)
            for prompt, ours in zip(prompts, said, strict=True):
                ids = run.tokenizer.encode([prompt])
                out = theirs.generate(
                    torch.tensor(ids),
                    max_new_tokens=12,
                    do_sample=False,
                    pad_token_id=0,
                    no_repeat_ngram_size=ngram,
                )
                # the text of a run ends with a whole character
                assert prompt + ours == run.tokenizer.decode([out[0].tolist()])[0].rstrip("\ufffd")

    @pytest.mark.parametrize("beams", [3, 5])
    @over(second)
    def test_beams_find_the_texts_and_scores_of_the_reference(
        self, case: Case, beams: int, tmp_path: Path
    ) -> None:
        """One prompt after another there, all at once here; the end is the likeliest
        token after the first.
        """
        theirs, run = make(tmp_path, case.config, seed=2, **case.sizes), ph.load(tmp_path)
        prompts = run.tokenizer.encode(["the king of the sea", "a dog", "two dogs bark"])
        lengths: set[int] = set()
        with torch.no_grad():
            end = int(theirs(torch.tensor(prompts[:1])).logits[0, -1].argmax())
        for penalty, ngram in ((1.0, 0), (-0.5, 0), (1.0, 2)):
            changes = {"beam_size": beams, "n_best": beams, "max_new_tokens": 9, "length_penalty": penalty}
            changes["no_repeat_ngram_size"] = ngram
            config = with_overrides(run.generation, changes, "beam search")
            found = restore_order(
                beam_continuations(run.model, prompts, config, eos_id=end, max_len=32), len(prompts)
            )
            for prompt, ours in zip(prompts, found, strict=True):
                wanted = theirs.generate(
                    torch.tensor([prompt]), max_new_tokens=9, do_sample=False, num_beams=beams,
                        num_return_sequences=beams,
                    length_penalty=penalty, no_repeat_ngram_size=ngram, eos_token_id=end, pad_token_id=0,
                    return_dict_in_generate=True, output_scores=True,
                )  # fmt: skip
                texts = [row[len(prompt) :] for row in wanted.sequences.tolist()]
                texts = [row[: row.index(end)] if end in row else row for row in texts]
                assert [h.tokens for h in ours] == texts
                assert [h.score for h in ours] == pytest.approx(wanted.sequences_scores.tolist(), rel=1e-5)
                lengths |= set(map(len, texts))
        assert len(lengths) > 1

    @pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
    @over(every)
    def test_a_run_exports_to_the_very_same_tensors(self, case: Case, dtype: str, tmp_path: Path) -> None:
        name = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
        make(tmp_path / "a", case.config, dtype=name, **case.sizes)
        if dtype == "fp32":  # the checkpoint itself, whose family it knows
            assert main(["export", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
        else:
            assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
            assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--dtype", dtype]) == 0
        before, after = (
            load_file(tmp_path / "a/model.safetensors"),
            load_file(tmp_path / "b/model.safetensors"),
        )
        assert before.keys() == after.keys()
        for key, tensor in before.items():
            assert tensor.dtype == after[key].dtype
            assert tensor.shape == after[key].shape
            assert (
                tensor.numpy(force=True).tobytes() == after[key].numpy(force=True).tobytes()
                if dtype != "bf16"
                else (torch.equal(tensor.view(torch.int16), after[key].view(torch.int16)))
            )

    @over(rotated)
    def test_readers_of_the_older_keys_find_theta_and_its_scaling(self, case: Case, tmp_path: Path) -> None:
        """Those before transformers 5 know no rope_parameters, and would take 10,000 and no scaling."""
        config = make(tmp_path / "a", case.config, **case.sizes).config
        assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
        assert main(["export", str(tmp_path / "run"), str(tmp_path / "b")]) == 0
        found, given = json.loads((tmp_path / "b/config.json").read_text()), config.rope_parameters
        if "full_attention" in given:  # one for each kind of layer, of which one is scaled
            if config.model_type == "gemma3_text":
                assert found["rope_local_base_freq"] == given["sliding_attention"]["rope_theta"]
            given = given["full_attention"]
        theta = "rotary_emb_base" if config.model_type == "gpt_neox" else "rope_theta"
        assert found[theta] == given["rope_theta"]
        if config.model_type == "gpt_neox":
            return
        kind = {} if given["rope_type"] == "default" else {"rope_type": given["rope_type"]}
        wanted = kind | {key: given[key] for key in OLDER if key in given}
        assert (found["rope_scaling"] or {}) == wanted

    @over(every)
    def test_from_pretrained_opens_what_was_exported(self, case: Case, tmp_path: Path) -> None:
        theirs, tokens = make(tmp_path / "a", case.config, **case.sizes), torch.randint(5, 300, (2, 15))
        assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
        assert main(["export", str(tmp_path / "run"), str(tmp_path / "b")]) == 0
        again, info = AutoModelForCausalLM.from_pretrained(
            tmp_path / "b", output_loading_info=True, attn_implementation="eager"
        )
        assert not any(info.values()), info
        assert type(again) is type(theirs)
        with torch.no_grad():
            torch.testing.assert_close(
                again.eval()(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=1e-6
            )
        assert (again.config.eos_token_id, again.config.bos_token_id) == (2, 1)
        tokenizer, ours = AutoTokenizer.from_pretrained(tmp_path / "b"), ph.load(tmp_path / "run").tokenizer
        for text in TEXTS:
            assert tokenizer(text, add_special_tokens=False)["input_ids"] == ours.encode([text])[0]
        assert tokenizer.eos_token_id == 2
