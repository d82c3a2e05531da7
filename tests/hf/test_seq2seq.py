"""Encoder-decoders against the reference implementation: logits, translations and their scores, the same files again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.hf.conftest import TEXTS, VOCABULARY, make
from tokenizers import Tokenizer as Inner
from tokenizers.processors import TemplateProcessing

import polyhead as ph
from polyhead.cli import main
from polyhead.hf.family import FAMILY
from polyhead.hf.reading import open_model

PAD, BOS, EOS, LANGUAGE = 0, 1, 2, 4  # <mask> plays a language


class Case(NamedTuple):
    """A config of the reference implementation, and what is not at its default."""

    config: str
    sizes: dict[str, Any]


T5 = {"d_model": 16, "d_kv": 6, "num_layers": 1, "num_decoder_layers": 2, "num_heads": 3, "d_ff": 20}
BART = {
    "d_model": 18, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 3, "decoder_attention_heads": 3,
    "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "max_position_embeddings": 64,
}  # fmt: skip
ODD = {**BART, "d_model": 20, "encoder_attention_heads": 5, "decoder_attention_heads": 5, "encoder_layers": 3, "decoder_layers": 1}
EOS_FIRST = {"decoder_start_token_id": EOS}
PAD_FIRST = {"decoder_start_token_id": PAD}
CASES = {
    "t5": [
        Case("T5Config", T5 | PAD_FIRST),
        Case("T5Config", T5 | PAD_FIRST | {"feed_forward_proj": "gated-gelu", "own_head": True, "d_kv": 5, "num_heads": 4,
                                           "relative_attention_num_buckets": 8, "relative_attention_max_distance": 9}),
        Case("T5Config", T5 | PAD_FIRST | {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False, "num_layers": 3,
                                           "num_decoder_layers": 1, "layer_norm_epsilon": 1e-3}),
        Case("T5Config", T5 | PAD_FIRST | {"feed_forward_proj": "gelu_new", "d_model": 10, "num_decoder_layers": None}),
    ],
    "bart": [
        Case("BartConfig", BART | EOS_FIRST | {"framed": ([BOS], [EOS])}),
        Case("BartConfig", ODD | EOS_FIRST | {"forced_bos_token_id": BOS, "scale_embedding": True, "framed": ([BOS], [EOS])}),
        Case("BartConfig", BART | EOS_FIRST | {"activation_function": "relu", "decoder_layers": 1}),
    ],
    "mbart": [
        Case("MBartConfig", BART | {"decoder_start_token_id": LANGUAGE, "framed": ([], [EOS, 3])}),
        Case("MBartConfig", ODD | EOS_FIRST | {"forced_bos_token_id": LANGUAGE, "scale_embedding": True, "framed": ([3], [EOS])}),
        Case("MBartConfig", BART | {"decoder_start_token_id": LANGUAGE, "activation_function": "silu", "decoder_layers": 1}),
    ],
    "marian": [
        Case("MarianConfig", BART | PAD_FIRST | {"activation_function": "swish", "scale_embedding": True, "bad_words_ids": [[PAD]]}),
        Case("MarianConfig", ODD | PAD_FIRST | {"share_encoder_decoder_embeddings": False, "bad_words_ids": [[PAD]]}),
        Case("MarianConfig", BART | PAD_FIRST | {"activation_function": "relu", "decoder_layers": 1}),
    ],
    "m2m_100": [
        Case("M2M100Config", BART | EOS_FIRST | {"forced_bos_token_id": LANGUAGE, "framed": ([3], [EOS])}),
        Case("M2M100Config", ODD | EOS_FIRST | {"scale_embedding": False, "activation_function": "gelu"}),
        Case("M2M100Config", BART | EOS_FIRST | {"decoder_layers": 3, "forced_bos_token_id": LANGUAGE, "framed": ([3], [EOS])}),
    ],
}  # fmt: skip
ALL = [pytest.param(case, id=f"{name}-{i}") for name, cases in CASES.items() for i, case in enumerate(cases)]
FIRST = [pytest.param(cases[0], id=name) for name, cases in CASES.items()]
TWO = [pytest.param(case, id=f"{name}-{i}") for name, cases in CASES.items() for i, case in enumerate(cases[:2])]
SOURCES = ["the king of the sea", "a dog", "two kings went to sea and one came back", "barks at two"]


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
        else:
            model.get_output_embeddings().weight[EOS] *= 4  # now very likely, now very unlikely
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=EOS, bos_token_id=BOS, pad_token_id=PAD, decoder_start_token_id=sizes["decoder_start_token_id"],
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
    """Within 1e-5, of the largest logit where that is above 1: T5 does not scale its scores, and its logits are large."""
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * max(1.0, float(theirs.abs().max())))


def test_every_family_of_encoder_decoders_has_three_shapes() -> None:
    assert CASES.keys() == {name for name in FAMILY.names() if "Seq2Seq" in FAMILY.get(name).architectures}
    assert all(len(cases) >= 3 for cases in CASES.values())


@pytest.mark.parametrize("case", ALL)
def test_logits_are_those_of_the_reference(case: Case, tmp_path: Path) -> None:
    theirs, (source, target) = published(tmp_path, case), (ids(3, 20), ids(3, 17))
    ours = open_model(tmp_path)
    with torch.no_grad():
        close(ours(source, target), theirs(input_ids=source, decoder_input_ids=target).logits)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("case", FIRST)
def test_padding_of_the_source_on_either_side_does_not_matter(case: Case, side: str, tmp_path: Path) -> None:
    theirs, lengths, place = published(tmp_path, case), torch.tensor([12, 7, 1]), torch.arange(12)
    ours, source, target = open_model(tmp_path), ids(3, 12), ids(3, 9)
    real = place >= 12 - lengths[:, None] if side == "left" else place < lengths[:, None]
    pos = (real.long().cumsum(1) - 1).masked_fill(~real, -1)
    with torch.no_grad():
        logits = ours(source, target, pos)
        for row in range(3):
            wanted = theirs(input_ids=source[row][real[row]][None], decoder_input_ids=target[row : row + 1]).logits
            close(logits[row], wanted[0])
        if side == "right" or case.config in ("T5Config", "M2M100Config"):  # the others count padding as positions
            padded = source.masked_fill(~real, PAD)
            close(logits, theirs(input_ids=padded, attention_mask=real.long(), decoder_input_ids=target).logits)


def words(sequence: list[int], start: int) -> list[int]:
    """What they said, without the start and the end."""
    said = sequence[start:]
    return said[: said.index(EOS)] if EOS in said else said


@pytest.mark.parametrize("beams", [1, 3, 5])
@pytest.mark.parametrize("case", TWO)
def test_translations_and_scores_are_those_of_the_reference(case: Case, beams: int, tmp_path: Path) -> None:
    theirs = published(tmp_path / "a", case)
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "a")
    start = 1 + ("forced_bos_token_id" in case.sizes)
    for run in (ph.load(tmp_path / "a"), ph.load(tmp_path / "run")):
        assert (run.generation.beam_size, run.generation.length_penalty, run.generation.early_stopping) == (3, 0.6, True)
        found = run.hypotheses(SOURCES, beam_size=beams, n_best=beams)
        said = []
        for text, best in zip(SOURCES, found, strict=True):
            wanted = theirs.generate(
                **{k: v for k, v in reader(text, return_tensors="pt").items() if k != "token_type_ids"}, num_beams=beams,
                num_return_sequences=beams, return_dict_in_generate=True, output_scores=True, do_sample=False,
            )  # fmt: skip
            said += [words(sequence, start) for sequence in wanted.sequences.tolist()]
            opening = list(run.tokenizer.sides.opening)
            assert [h.tokens for h in best] == [
                x[len(opening) :] if start == 1 and opening and x[: len(opening)] == opening else x for x in said[-beams:]
            ]
            if beams > 1:
                assert [h.score for h in best] == pytest.approx(wanted.sequences_scores.tolist(), abs=1e-5)
        assert beams == 1 or len({len(x) for x in said}) > 1


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("case", ALL)
def test_a_run_exports_to_the_very_same_tensors(case: Case, dtype: str, tmp_path: Path) -> None:
    name = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    theirs = published(tmp_path / "a", case, dtype=name)
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    arguments = ["--family", theirs.config.model_type, "--dtype", dtype]
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), *arguments]) == 0
    before, after = load_file(tmp_path / "a/model.safetensors"), load_file(tmp_path / "b/model.safetensors")
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert (tensor.dtype, tensor.shape) == (after[key].dtype, after[key].shape)
        kind = {4: torch.int32, 2: torch.int16}[tensor.element_size()]
        assert torch.equal(tensor.view(kind), after[key].view(kind))


@pytest.mark.parametrize("case", ALL)
def test_from_pretrained_opens_what_was_exported(case: Case, tmp_path: Path) -> None:
    theirs, (source, target) = published(tmp_path / "a", case), (ids(2, 15), ids(2, 11))
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--family", theirs.config.model_type]) == 0
    again, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        close(again.eval()(input_ids=source, decoder_input_ids=target).logits, theirs(input_ids=source, decoder_input_ids=target).logits)
    for key in ("decoder_start_token_id", "forced_bos_token_id", "eos_token_id", "pad_token_id", "max_length", "num_beams",
                "length_penalty", "early_stopping", "bad_words_ids"):  # fmt: skip
        assert getattr(again.generation_config, key) == getattr(theirs.generation_config, key), key
    assert again.config.decoder_start_token_id == theirs.config.decoder_start_token_id
    before, after = (transformers.AutoTokenizer.from_pretrained(tmp_path / place) for place in "ab")
    assert [after(text)["input_ids"] for text in TEXTS] == [before(text)["input_ids"] for text in TEXTS]
