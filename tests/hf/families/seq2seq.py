"""Encoder-decoders of a family against the reference implementation: logits,
translations, scores and files.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.hf.conftest import TEXTS, VOCABULARY, make
from tests.hf.families.laws import FamilyLaws, over
from tests.hf.families.seq2seq_cases import BOS, CASES, EOS, LANGUAGE, PAD, Case
from tokenizers.processors import TemplateProcessing

import polyhead as ph
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.data.batching.collate import collate_pairs
from polyhead.hf.load import load_model
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.nn.state import named_state
from tokenizers import Tokenizer as Inner

SOURCES = ["the king of the sea", "a dog", "two kings went to sea and one came back", "barks at two"]


def every(names: Iterable[str]) -> list[Any]:
    return [pytest.param(case, id=f"{name}-{i}") for name in names for i, case in enumerate(CASES[name])]


def first(names: Iterable[str]) -> list[Any]:
    return [pytest.param(CASES[name][0], id=name) for name in names]


def two(names: Iterable[str]) -> list[Any]:
    """Two rows of each family, and those with embeddings that are not tied."""
    rows = every(names)
    return [row for row in rows if row.id[-1] in "01" or "tie_word_embeddings" in row.values[0].sizes]


def published(directory: Path, case: Case, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """The reference model of a case and its tokenizer, saved; what is no size says how it is used."""
    sizes = dict(case.sizes)
    own, (before, after) = sizes.pop("own_head", False), sizes.pop("framed", ([], [EOS]))
    said = {key: sizes.pop(key) for key in ("forced_bos_token_id", "bad_words_ids") if key in sizes}
    made = {"pad_token_id": PAD, "forced_eos_token_id": None} | sizes
    model = make(directory, case.config, seed, dtype, "AutoModelForSeq2SeqLM", **made)
    with torch.no_grad():
        if own:
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
            model.config.scale_decoder_outputs = False
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(std=0.3)
            model.final_logits_bias[0, EOS] = 2.0  # so that outputs end
            if "bad_words_ids" in said:
                model.final_logits_bias[0, PAD] = 3.0  # it would be said if it were not forbidden
        else:
            model.get_output_embeddings().weight[EOS] *= 8  # now very likely, now very unlikely
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=EOS, bos_token_id=BOS, pad_token_id=PAD,
        decoder_start_token_id=sizes["decoder_start_token_id"],
        max_length=24, num_beams=3, length_penalty=0.6, early_stopping=True, **said,
    )  # fmt: skip
    model.save_pretrained(directory)
    inner = Inner.from_file(str(directory / "tokenizer.json"))
    single = " ".join([*map(inner.id_to_token, before), "$A", *map(inner.id_to_token, after)])
    used = [(inner.id_to_token(i), i) for i in {*before, *after}]
    inner.post_processor = TemplateProcessing(single=single, pair=f"{single} $B", special_tokens=used)
    inner.save(str(directory / "tokenizer.json"))
    return model


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(5, VOCABULARY, shape)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Within 1e-5, of the largest logit where that is above 1: T5 does not scale its scores, and its logits
    are large.
    """
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * max(1.0, float(theirs.abs().max())))


def words(sequence: list[int], start: int) -> list[int]:
    """What they said, without the start and the end."""
    said = sequence[start:]
    return said[: said.index(EOS)] if EOS in said else said


def rewritten(directory: Path, found: dict[str, torch.Tensor]) -> None:
    save_file({name: tensor.clone() for name, tensor in found.items()}, directory / "model.safetensors")


class Seq2SeqFamily(FamilyLaws):
    @over(every)
    def test_logits_are_those_of_the_reference(self, case: Case, tmp_path: Path) -> None:
        theirs, (source, target) = published(tmp_path, case), (ids(3, 20), ids(3, 17))
        ours = load_model(tmp_path)
        with torch.no_grad():
            close(ours(source, target), theirs(input_ids=source, decoder_input_ids=target).logits)

    @pytest.mark.parametrize("side", ["left", "right"])
    @over(first)
    def test_padding_of_the_source_on_either_side_does_not_matter(
        self, case: Case, side: str, tmp_path: Path
    ) -> None:
        theirs, lengths, place = published(tmp_path, case), torch.tensor([12, 7, 1]), torch.arange(12)
        ours, source, target = load_model(tmp_path), ids(3, 12), ids(3, 9)
        real = place >= 12 - lengths[:, None] if side == "left" else place < lengths[:, None]
        pos = (real.long().cumsum(1) - 1).masked_fill(~real, -1)
        with torch.no_grad():
            logits = ours(source, target, pos)
            for row in range(3):
                wanted = theirs(
                    input_ids=source[row][real[row]][None], decoder_input_ids=target[row : row + 1]
                ).logits
                close(logits[row], wanted[0])
            # the others count padding as positions
            if side == "right" or case.config in ("T5Config", "M2M100Config"):
                padded = source.masked_fill(~real, PAD)
                close(
                    logits,
                    theirs(input_ids=padded, attention_mask=real.long(), decoder_input_ids=target).logits,
                )

    @pytest.mark.parametrize(("beams", "ngram"), [(1, 0), (3, 0), (5, 0), (1, 2), (3, 2)])
    @over(two)
    def test_translations_and_scores_are_those_of_the_reference(
        self, case: Case, beams: int, ngram: int, tmp_path: Path
    ) -> None:
        theirs = published(tmp_path / "a", case)
        assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
        reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "a")
        start = 1 + ("forced_bos_token_id" in case.sizes)
        for run in (ph.load(tmp_path / "a"), ph.load(tmp_path / "run")):
            assert (
                run.generation.beam_size,
                run.generation.length_penalty,
                run.generation.early_stopping,
            ) == (
                3,
                0.6,
                True,
            )
            found = run.hypotheses(SOURCES, beam_size=beams, n_best=beams, no_repeat_ngram_size=ngram)
            said = []
            for text, best in zip(SOURCES, found, strict=True):
                wanted = theirs.generate(
                    **{k: v for k, v in reader(text, return_tensors="pt").items() if k != "token_type_ids"},
                        num_beams=beams,
                    num_return_sequences=beams, return_dict_in_generate=True, output_scores=True,
                    do_sample=False, no_repeat_ngram_size=ngram,
                    use_cache=False,  # theirs has one layer of memory for every encoder layer of T5
                )  # fmt: skip
                said += [words(sequence, start) for sequence in wanted.sequences.tolist()]
                opening = list(run.tokenizer.seq2seq_template.opening_ids)
                assert [h.tokens for h in best] == [
                    x[len(opening) :] if start == 1 and opening and x[: len(opening)] == opening else x
                    for x in said[-beams:]
                ]
                if beams > 1:
                    assert [h.score for h in best] == pytest.approx(
                        wanted.sequences_scores.tolist(), rel=2e-6, abs=1e-5
                    )
            assert beams == 1 or ngram or len({len(x) for x in said}) > 1

    @pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
    @over(every)
    def test_a_run_exports_to_the_very_same_tensors(self, case: Case, dtype: str, tmp_path: Path) -> None:
        name = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
        published(tmp_path / "a", case, dtype=name)
        assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
        assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--dtype", dtype]) == 0
        before, after = (
            load_file(tmp_path / "a/model.safetensors"),
            load_file(tmp_path / "b/model.safetensors"),
        )
        assert before.keys() == after.keys()
        for key, own in before.items():
            # where all have their own this is read by nobody, and written as that of the source
            tensor = (
                before.get("model.encoder.embed_tokens.weight", own) if key == "model.shared.weight" else own
            )
            assert (tensor.dtype, tensor.shape) == (after[key].dtype, after[key].shape)
            kind = {4: torch.int32, 2: torch.int16}[tensor.element_size()]
            assert torch.equal(tensor.view(kind), after[key].view(kind))

    @over(every)
    def test_from_pretrained_opens_what_was_exported(self, case: Case, tmp_path: Path) -> None:
        theirs, (source, target) = published(tmp_path / "a", case), (ids(2, 15), ids(2, 11))
        assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
        assert main(["export", str(tmp_path / "run"), str(tmp_path / "b")]) == 0
        again, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(
            tmp_path / "b", output_loading_info=True
        )
        assert not any(info.values()), info
        assert type(again) is type(theirs)
        with torch.no_grad():
            close(
                again.eval()(input_ids=source, decoder_input_ids=target).logits,
                theirs(input_ids=source, decoder_input_ids=target).logits,
            )
        for key in ("decoder_start_token_id", "forced_bos_token_id", "eos_token_id", "pad_token_id",
            "max_length", "num_beams",
                    "length_penalty", "early_stopping", "bad_words_ids"):  # fmt: skip
            assert getattr(again.generation_config, key) == getattr(theirs.generation_config, key), key
        assert again.config.decoder_start_token_id == theirs.config.decoder_start_token_id
        before, after = (transformers.AutoTokenizer.from_pretrained(tmp_path / place) for place in "ab")
        assert [after(text)["input_ids"] for text in TEXTS] == [before(text)["input_ids"] for text in TEXTS]

    @over(two)
    def test_training_and_scores_are_framed_as_the_reference_was_trained(
        self, case: Case, tmp_path: Path
    ) -> None:
        theirs, run = published(tmp_path, case), ph.load(tmp_path)
        sides, targets = run.tokenizer.seq2seq_template, ["a dog barks", "the sea", "two", "a king of kings"]
        pairs = run.tokenizer.encode(SOURCES), run.tokenizer.encode(targets)
        batch, start = collate_pairs(*pairs, run.tokenizer), case.sizes["decoder_start_token_id"]
        reader = transformers.AutoTokenizer.from_pretrained(tmp_path)
        whole = [reader(text)["input_ids"] for text in SOURCES]
        assert [row[: len(ids)] for row, ids in zip(batch.source.tolist(), whole, strict=True)] == whole
        before = {"BartConfig": [BOS], "MBartConfig": [LANGUAGE], "M2M100Config": [LANGUAGE]}.get(
            case.config, []
        )
        if not case.sizes.get("framed", ([], []))[0]:
            before = []
        losses = []
        for row, (source, target) in enumerate(zip(whole, pairs[1], strict=True)):
            labels = [*before, *target, EOS]
            assert batch.target[row, : len(labels)].tolist() == [start, *labels[:-1]]
            assert batch.labels[row, : len(labels)].tolist() == labels
            assert set(batch.labels[row, len(labels) :].tolist()) <= {IGNORE_INDEX}
            asked = torch.tensor([labels])
            if sides.opening_forced:
                asked[:, : len(before)] = IGNORE_INDEX
            with torch.no_grad():
                logits = theirs(
                    input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[start, *labels[:-1]]])
                ).logits
            losses.append(-float(torch.nn.functional.cross_entropy(logits[0], asked[0], reduction="sum")))
        scores = run.score(SOURCES, targets)
        assert [s.log_prob for s in scores] == pytest.approx(losses, rel=1e-5)
        assert [s.tokens for s in scores] == [
            len(ids) + 1 + (len(before) and not sides.opening_forced) for ids in pairs[1]
        ]
        tokens, rows, cross = run.cross_attention(SOURCES[0], targets[0])
        assert (
            cross.shape[-2:]
            == (len(rows), len(tokens))
            == (len(before) + len(pairs[1][0]) + 1, len(whole[0]))
        )

    @over(first)
    def test_older_files_hold_copies_and_buffers(self, case: Case, tmp_path: Path) -> None:
        published(tmp_path, case)
        before, found = ph.load(tmp_path), load_file(tmp_path / "model.safetensors")
        prefix = "" if case.config in ("T5Config", "MT5Config") else "model."
        shared = found[f"{prefix}shared.weight"]
        found |= {f"{prefix}{side}.embed_tokens.weight": shared for side in ("encoder", "decoder")}
        if case.config != "MT5Config":  # whose head is its own where it is there
            found["lm_head.weight"] = shared
        if not prefix:
            name = "decoder.block.0.layer.{}.{}Attention.relative_attention_bias.weight"
            found[name.format(1, "EncDec")] = found[name.format(0, "Self")]
        if case.config in ("MarianConfig", "M2M100Config", "PegasusConfig"):
            end = "weights" if case.config == "M2M100Config" else "weight"
            found |= {
                f"model.{side}.embed_positions.{end}": torch.randn(64, 18) for side in ("encoder", "decoder")
            }
        rewritten(tmp_path, found)
        after = ph.load(tmp_path)
        assert after.config == before.config
        assert all(
            torch.equal(tensor, named_state(after.model)[name])
            for name, tensor in named_state(before.model).items()
        )
        if case.config == "MT5Config":
            return
        found["lm_head.weight"] = shared + 1
        rewritten(tmp_path, found)
        with pytest.raises(
            UserError,
            match=r"lm_head.weight is not (model\.)?shared.weight, but according to config.json they are "
            r"tied",
        ):
            ph.load(tmp_path)
