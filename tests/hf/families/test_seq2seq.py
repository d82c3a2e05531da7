"""Encoder-decoders against the reference implementation: logits, translations and their scores, the same files again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.hf.conftest import TEXTS, VOCABULARY, make
from tokenizers.processors import TemplateProcessing

import polyhead as ph
from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.data.batching.collate import collate_pairs
from polyhead.hf.family import FAMILY
from polyhead.hf.load import load_model
from polyhead.hf.save import build_checkpoint as export
from polyhead.hf.save import pick_family
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.nn.state import named_state
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import Tokenizer as Inner

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
ODD = {
    **BART,
    "d_model": 20,
    "encoder_attention_heads": 5,
    "decoder_attention_heads": 5,
    "encoder_layers": 3,
    "decoder_layers": 1,
}
EOS_FIRST = {"decoder_start_token_id": EOS}
PAD_FIRST = {"decoder_start_token_id": PAD}
UNTIED = {"tie_word_embeddings": False}
CASES = {
    "t5": [
        Case("T5Config", T5 | PAD_FIRST),
        Case("T5Config", T5 | PAD_FIRST | {"feed_forward_proj": "gated-gelu", "own_head": True, "d_kv": 5, "num_heads": 4,
                                           "relative_attention_num_buckets": 8, "relative_attention_max_distance": 9}),
        Case("T5Config", T5 | PAD_FIRST | {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False, "num_layers": 3,
                                           "num_decoder_layers": 1, "layer_norm_epsilon": 1e-3}),
        Case("T5Config", T5 | PAD_FIRST | {"feed_forward_proj": "gelu_new", "d_model": 10, "num_decoder_layers": None}),
    ],
    "mt5": [
        Case("MT5Config", T5 | PAD_FIRST | {"own_head": True}),
        Case("MT5Config", T5 | PAD_FIRST | {"d_kv": 5, "num_heads": 4, "relative_attention_num_buckets": 8,
                                            "relative_attention_max_distance": 9, "layer_norm_epsilon": 1e-3}),
        Case("MT5Config", T5 | PAD_FIRST | {"own_head": True, "feed_forward_proj": "relu", "num_layers": 3, "d_model": 10,
                                            "num_decoder_layers": 1}),
    ],
    "bart": [
        Case("BartConfig", BART | EOS_FIRST | {"framed": ([BOS], [EOS])}),
        Case("BartConfig", ODD | EOS_FIRST | {"forced_bos_token_id": BOS, "scale_embedding": True, "framed": ([BOS], [EOS])}),
        Case("BartConfig", BART | EOS_FIRST | {"activation_function": "relu", "decoder_layers": 1}),
        Case("BartConfig", BART | EOS_FIRST | UNTIED),
    ],
    "mbart": [
        Case("MBartConfig", BART | {"decoder_start_token_id": LANGUAGE, "framed": ([], [EOS, 3])}),
        Case("MBartConfig", ODD | EOS_FIRST | {"forced_bos_token_id": LANGUAGE, "scale_embedding": True, "framed": ([3], [EOS])}),
        Case("MBartConfig", BART | {"decoder_start_token_id": LANGUAGE, "activation_function": "silu", "decoder_layers": 1}),
        Case("MBartConfig", ODD | EOS_FIRST | UNTIED | {"scale_embedding": True}),
    ],
    "marian": [
        Case("MarianConfig", BART | PAD_FIRST | {"activation_function": "swish", "scale_embedding": True, "bad_words_ids": [[PAD]]}),
        Case("MarianConfig", ODD | PAD_FIRST | {"share_encoder_decoder_embeddings": False, "bad_words_ids": [[PAD]]}),
        Case("MarianConfig", BART | PAD_FIRST | {"activation_function": "relu", "decoder_layers": 1}),
        Case("MarianConfig", BART | PAD_FIRST | UNTIED | {"share_encoder_decoder_embeddings": False, "bad_words_ids": [[PAD]]}),
    ],
    "pegasus": [
        Case("PegasusConfig", BART | PAD_FIRST | {"activation_function": "relu", "scale_embedding": True}),
        Case("PegasusConfig", ODD | PAD_FIRST),
        Case("PegasusConfig", BART | PAD_FIRST | {"activation_function": "gelu_new", "decoder_layers": 3, "encoder_layers": 3}),
        Case("PegasusConfig", BART | PAD_FIRST | UNTIED | {"scale_embedding": True}),
    ],
    "m2m_100": [
        Case("M2M100Config", BART | EOS_FIRST | {"forced_bos_token_id": LANGUAGE, "framed": ([3], [EOS])}),
        Case("M2M100Config", ODD | EOS_FIRST | {"scale_embedding": False, "activation_function": "gelu"}),
        Case("M2M100Config", BART | EOS_FIRST | {"decoder_layers": 3, "forced_bos_token_id": LANGUAGE, "framed": ([3], [EOS])}),
        Case("M2M100Config", ODD | EOS_FIRST | UNTIED),
    ],
}  # fmt: skip
ALL = [pytest.param(case, id=f"{name}-{i}") for name, cases in CASES.items() for i, case in enumerate(cases)]
FIRST = [pytest.param(cases[0], id=name) for name, cases in CASES.items()]
APART = [param for param in ALL if "tie_word_embeddings" in param.values[0].sizes]
TWO = [param for param in ALL if param.id[-1] in "01" or param in APART]
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
            if "bad_words_ids" in said:
                model.final_logits_bias[0, PAD] = 3.0  # it would be said if it were not forbidden
        else:
            model.get_output_embeddings().weight[EOS] *= 8  # now very likely, now very unlikely
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
    ours = load_model(tmp_path)
    with torch.no_grad():
        close(ours(source, target), theirs(input_ids=source, decoder_input_ids=target).logits)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("case", FIRST)
def test_padding_of_the_source_on_either_side_does_not_matter(case: Case, side: str, tmp_path: Path) -> None:
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
                logits, theirs(input_ids=padded, attention_mask=real.long(), decoder_input_ids=target).logits
            )


def words(sequence: list[int], start: int) -> list[int]:
    """What they said, without the start and the end."""
    said = sequence[start:]
    return said[: said.index(EOS)] if EOS in said else said


@pytest.mark.parametrize(("beams", "ngram"), [(1, 0), (3, 0), (5, 0), (1, 2), (3, 2)])
@pytest.mark.parametrize("case", TWO)
def test_translations_and_scores_are_those_of_the_reference(
    case: Case, beams: int, ngram: int, tmp_path: Path
) -> None:
    theirs = published(tmp_path / "a", case)
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "a")
    start = 1 + ("forced_bos_token_id" in case.sizes)
    for run in (ph.load(tmp_path / "a"), ph.load(tmp_path / "run")):
        assert (run.generation.beam_size, run.generation.length_penalty, run.generation.early_stopping) == (
            3,
            0.6,
            True,
        )
        found = run.hypotheses(SOURCES, beam_size=beams, n_best=beams, no_repeat_ngram_size=ngram)
        said = []
        for text, best in zip(SOURCES, found, strict=True):
            wanted = theirs.generate(
                **{k: v for k, v in reader(text, return_tensors="pt").items() if k != "token_type_ids"}, num_beams=beams,
                num_return_sequences=beams, return_dict_in_generate=True, output_scores=True, do_sample=False, no_repeat_ngram_size=ngram,
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
@pytest.mark.parametrize("case", ALL)
def test_a_run_exports_to_the_very_same_tensors(case: Case, dtype: str, tmp_path: Path) -> None:
    name = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    published(tmp_path / "a", case, dtype=name)
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--dtype", dtype]) == 0
    before, after = load_file(tmp_path / "a/model.safetensors"), load_file(tmp_path / "b/model.safetensors")
    assert before.keys() == after.keys()
    for key, own in before.items():
        # where all have their own this is read by nobody, and written as that of the source
        tensor = before.get("model.encoder.embed_tokens.weight", own) if key == "model.shared.weight" else own
        assert (tensor.dtype, tensor.shape) == (after[key].dtype, after[key].shape)
        kind = {4: torch.int32, 2: torch.int16}[tensor.element_size()]
        assert torch.equal(tensor.view(kind), after[key].view(kind))


@pytest.mark.parametrize("case", ALL)
def test_from_pretrained_opens_what_was_exported(case: Case, tmp_path: Path) -> None:
    theirs, (source, target) = published(tmp_path / "a", case), (ids(2, 15), ids(2, 11))
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b")]) == 0
    again, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not any(info.values()), info
    assert type(again) is type(theirs)
    with torch.no_grad():
        close(
            again.eval()(input_ids=source, decoder_input_ids=target).logits,
            theirs(input_ids=source, decoder_input_ids=target).logits,
        )
    for key in ("decoder_start_token_id", "forced_bos_token_id", "eos_token_id", "pad_token_id", "max_length", "num_beams",
                "length_penalty", "early_stopping", "bad_words_ids"):  # fmt: skip
        assert getattr(again.generation_config, key) == getattr(theirs.generation_config, key), key
    assert again.config.decoder_start_token_id == theirs.config.decoder_start_token_id
    before, after = (transformers.AutoTokenizer.from_pretrained(tmp_path / place) for place in "ab")
    assert [after(text)["input_ids"] for text in TEXTS] == [before(text)["input_ids"] for text in TEXTS]


@pytest.mark.parametrize("case", TWO)
def test_training_and_scores_are_framed_as_the_reference_was_trained(case: Case, tmp_path: Path) -> None:
    theirs, run = published(tmp_path, case), ph.load(tmp_path)
    sides, targets = run.tokenizer.seq2seq_template, ["a dog barks", "the sea", "two", "a king of kings"]
    pairs = run.tokenizer.encode(SOURCES), run.tokenizer.encode(targets)
    batch, start = collate_pairs(*pairs, run.tokenizer), case.sizes["decoder_start_token_id"]
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path)
    whole = [reader(text)["input_ids"] for text in SOURCES]
    assert [row[: len(ids)] for row, ids in zip(batch.source.tolist(), whole, strict=True)] == whole
    before = {"BartConfig": [BOS], "MBartConfig": [LANGUAGE], "M2M100Config": [LANGUAGE]}.get(case.config, [])
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
    assert cross.shape[-2:] == (len(rows), len(tokens)) == (len(before) + len(pairs[1][0]) + 1, len(whole[0]))


def test_languages_may_be_chosen(tmp_path: Path) -> None:
    case = CASES["m2m_100"][0]
    theirs, path = published(tmp_path, case), tmp_path / "tokenizer.json"
    inner = Inner.from_file(str(path))
    inner.add_special_tokens(["__en__", "de_DE"])
    inner.post_processor = TemplateProcessing(
        single="<unk> $A </s>", pair="$A $B", special_tokens=[("<unk>", 3), ("</s>", 2)]
    )
    assert (inner.token_to_id("__en__"), inner.token_to_id("de_DE")) == (VOCABULARY, VOCABULARY + 1)
    theirs.resize_token_embeddings(VOCABULARY + 2)
    theirs.save_pretrained(tmp_path)
    inner.save(str(path))
    run = ph.load(tmp_path)
    for source, before in ((None, [3]), ("en", [VOCABULARY, 3])):
        found = run.hypotheses(SOURCES, source_lang=source, target_lang="de")
        for text, (best,) in zip(SOURCES, found, strict=True):
            read = torch.tensor([[*before, *run.tokenizer.encode([text])[0], EOS]])
            said = theirs.generate(read, forced_bos_token_id=VOCABULARY + 1, use_cache=False)[0].tolist()
            assert best.tokens == words(said, 2)
    with pytest.raises(UserError, match="language 'fr': no token of this model names it"):
        run.translate(SOURCES, target_lang="fr")


def changed(directory: Path, **values: Any) -> None:
    path = directory / "config.json"
    path.write_text(
        json.dumps({k: v for k, v in (json.loads(path.read_text()) | values).items() if v != "gone"})
    )


def rewritten(directory: Path, found: dict[str, torch.Tensor]) -> None:
    save_file({name: tensor.clone() for name, tensor in found.items()}, directory / "model.safetensors")


@pytest.mark.parametrize("case", FIRST)
def test_older_files_hold_copies_and_buffers(case: Case, tmp_path: Path) -> None:
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
        match=r"lm_head.weight is not (model\.)?shared.weight, and config.json says that they are one",
    ):
        ph.load(tmp_path)


@pytest.mark.parametrize("name", ["bart", "mbart", "marian", "pegasus", "m2m_100"])
def test_sides_that_share_their_embeddings_beside_a_head_of_its_own(name: str, tmp_path: Path) -> None:
    """As files of transformers 4 have it, which never parted the sides. Exported, each has a copy."""
    case = CASES[name][-1]
    sizes = case.sizes | ({"share_encoder_decoder_embeddings": True} if name == "marian" else {})
    theirs, (source, target) = published(tmp_path / "a", Case(case.config, sizes)), (ids(2, 9), ids(2, 7))
    shared, head = theirs.model.shared.weight, theirs.lm_head.weight
    with torch.no_grad():
        theirs.model.encoder.embed_tokens.weight.copy_(shared)
        theirs.model.decoder.embed_tokens.weight.copy_(shared)
        wanted = theirs(input_ids=source, decoder_input_ids=target).logits
    found = load_file(tmp_path / "a/model.safetensors")
    rewritten(tmp_path / "a", {n: t for n, t in found.items() if not n.endswith("embed_tokens.weight")})
    ours = load_model(tmp_path / "a")
    assert ours.config.tie_embeddings == "inputs"
    assert torch.equal(named_state(ours)["encoder_embedding.token.weight"], shared)
    assert torch.equal(named_state(ours)["head.weight"], head)
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b")]) == 0
    again, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        close(ours(source, target), wanted)
        close(again.eval()(input_ids=source, decoder_input_ids=target).logits, wanted)
        close(load_model(tmp_path / "b")(source, target), wanted)


def test_embeddings_of_marian_that_are_said_to_be_shared_and_tied_to_nothing_are_each_their_own(
    tmp_path: Path,
) -> None:
    sizes = CASES["marian"][-1].sizes | {"share_encoder_decoder_embeddings": True}
    theirs, (source, target) = published(tmp_path, Case("MarianConfig", sizes)), (ids(2, 9), ids(2, 7))
    assert "model.shared.weight" in load_file(tmp_path / "model.safetensors")
    ours = load_model(tmp_path)
    assert ours.config.tie_embeddings == "none"
    with torch.no_grad():
        close(ours(source, target), theirs(input_ids=source, decoder_input_ids=target).logits)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (
            "bart",
            {"normalize_before": False, "extra_pos_embeddings": 2, "save_step": 58, "classif_dropout": 0.0},
        ),
        ("mbart", {"normalize_before": True, "add_final_layer_norm": True, "max_length": 25, "num_beams": 3}),
        (
            "marian",
            {"normalize_before": False, "normalize_embedding": False, "static_position_embeddings": True},
        ),
        ("t5", {"task_specific_params": {"summarization": {"num_beams": 4}}}),
    ],
)
def test_configs_of_2020_are_read(name: str, keys: dict[str, Any], tmp_path: Path) -> None:
    """As those of OPUS-MT, BART for summaries and others say it; the reference passes over the same keys."""
    published(tmp_path, CASES[name][0])
    before = ph.load(tmp_path).config
    labels = {"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}, "label2id": {"LABEL_0": 0}}
    changed(tmp_path, _num_labels=3, output_past=True, gradient_checkpointing=False, **labels, **keys)
    assert ph.load(tmp_path).config == before
    assert transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


def test_a_bare_bart_has_no_bias_of_scores(tmp_path: Path) -> None:
    theirs = published(tmp_path, CASES["bart"][0])
    theirs.model.save_pretrained(tmp_path)
    ours, (source, target) = load_model(tmp_path), (ids(2, 9), ids(2, 7))
    assert not ours.config.head_bias
    theirs.final_logits_bias.zero_()
    with torch.no_grad():
        close(ours(source, target), theirs(input_ids=source, decoder_input_ids=target).logits)


def test_a_t5_of_before_scale_decoder_outputs_is_the_same(tmp_path: Path) -> None:
    published(tmp_path, CASES["t5"][1])
    before = ph.load(tmp_path).config
    changed(
        tmp_path,
        scale_decoder_outputs="gone",
        tie_word_embeddings=False,
        is_gated_act="gone",
        dense_act_fn="gone",
    )
    assert ph.load(tmp_path).config == before
    assert (before.tie_embeddings, before.scale_output) == ("inputs", False)


def test_null_for_scale_decoder_outputs_is_not_scaled(tmp_path: Path) -> None:
    published(tmp_path, CASES["t5"][0])
    changed(tmp_path, scale_decoder_outputs=None)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    ours, (source, target) = load_model(tmp_path), (ids(2, 9), ids(2, 7))
    assert not ours.config.scale_output
    with torch.no_grad():
        close(ours(source, target), theirs(input_ids=source, decoder_input_ids=target).logits)


@pytest.mark.parametrize("name", ["bart", "mbart", "marian", "pegasus", "m2m_100"])
def test_of_a_decoder_nothing_follows_from_the_encoder(name: str, tmp_path: Path) -> None:
    """A config that does not say the decoder's heads means 16, as in the reference, and not those of the encoder."""
    case = CASES[name][0]
    sizes = case.sizes | {"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    published(tmp_path, Case(case.config, sizes))
    changed(tmp_path, decoder_attention_heads="gone")
    assert transformers.AutoConfig.from_pretrained(tmp_path).decoder_attention_heads == 16
    with pytest.raises(UserError, match="decoder_attention_heads is 16, wanted 2, all that is built"):
        load_model(tmp_path)
    changed(tmp_path, encoder_attention_heads=16)
    ours, (source, target) = load_model(tmp_path), (ids(2, 9), ids(2, 7))
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        close(ours(source, target), theirs(input_ids=source, decoder_input_ids=target).logits)


def test_settings_of_before_generation_config_are_in_config_json(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    published(tmp_path, CASES["bart"][0])
    wanted = ph.load(tmp_path).generation
    settings = json.loads((tmp_path / "generation_config.json").read_text())
    (tmp_path / "generation_config.json").unlink()
    changed(
        tmp_path,
        **{key: settings[key] for key in ("max_length", "num_beams", "length_penalty", "early_stopping")},
    )
    assert ph.load(tmp_path).generation == wanted
    assert (wanted.max_length_ratio, wanted.max_length_extra) == (0, 23)
    assert not caplog.messages
    changed(tmp_path, no_repeat_ngram_size=3)
    assert ph.load(tmp_path).generation == wanted.model_copy(update={"no_repeat_ngram_size": 3})
    assert not caplog.messages
    changed(tmp_path, repetition_penalty=1.5)
    ph.load(tmp_path)
    assert caplog.messages == [
        f"{tmp_path / 'config.json'}: repetition_penalty is 1.5, and translations are searched for without it"
    ]
    caplog.clear()
    changed(
        tmp_path,
        repetition_penalty=1.0,
        bad_words_ids=[[5], [7, 8]],
        suppress_tokens=[9],
    )
    assert ph.load(tmp_path).generation.forbidden
    assert [message.partition(": ")[2].partition(", and")[0] for message in caplog.messages] == [
        "bad_words_ids is [[7, 8]]",
        "suppress_tokens is [9]",
    ]
    changed(tmp_path, bad_words_ids=7)
    with pytest.raises(UserError, match="bad_words_ids is 7, wanted lists of ids of tokens"):
        ph.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("bart", {"decoder_attention_heads": 2}, "decoder_attention_heads is 2, wanted 3, all that is built"),
        ("marian", {"decoder_ffn_dim": 21}, "decoder_ffn_dim is 21, wanted 20, all that is built"),
        ("marian", {"decoder_vocab_size": 200}, "decoder_vocab_size is 200, wanted 300, all that is built"),
        ("bart", {"tie_word_embeddings": False}, "missing: lm_head.weight"),
        ("bart", {"normalize_before": True}, "normalize_before is true, wanted false, all that is built"),
        (
            "mbart",
            {"activation_function": "quick_gelu"},
            "activation_function is 'quick_gelu', wanted one of",
        ),
        (
            "t5",
            {"feed_forward_proj": "gated-gelu-new"},
            "feed_forward_proj is 'gated-gelu-new', wanted one of",
        ),
        ("t5", {"dense_act_fn": "silu"}, "dense_act_fn is 'silu', wanted 'relu', all that is built"),
        ("mt5", {"dense_act_fn": "gelu"}, "dense_act_fn is 'gelu', wanted 'gelu_new', all that is built"),
        ("t5", {"relative_attention_num_buckets": 7}, "buckets of t5 is 7; two sides want an even number"),
    ],
)
def test_what_is_not_built_is_refused(
    name: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    published(tmp_path, CASES[name][0])
    changed(tmp_path, **values)
    with pytest.raises(UserError, match=message) as error:
        ph.load(tmp_path)
    assert "\n" not in str(error.value)


OWN = {"d_model": 24, "n_heads": 3, "n_layers": 1, "n_decoder_layers": 2, "max_len": 32, "dropout": 0.0}
HALVES = {"name": "sinusoidal", "layout": "halves"}
PRE = {"norm_first": True}
LIKE_T5 = PRE | {"position": "t5", "norm": {"name": "rmsnorm", "eps": 1e-6}, "attention": {"name": "softmax", "scale": 1.0, "bias": False},
                 "feed_forward": {"name": "relu", "bias": False}, "scale_embedding": False, "scale_output": True}  # fmt: skip
TRAINED = [
    ("marian", {"position": HALVES, "head_bias": True, "feed_forward": "silu"}),
    ("marian", {"position": HALVES, "tie_embeddings": "target"}),
    ("marian", {"position": HALVES, "tie_embeddings": "none"}),
    ("marian", {"position": HALVES, "tie_embeddings": "inputs"}),
    ("m2m_100", {"position": HALVES | {"endpoint": True, "offset": 1}, "tie_embeddings": "none"} | PRE),
    ("m2m_100", {"position": HALVES | {"endpoint": True, "offset": 1}, "tie_embeddings": "inputs"} | PRE),
    ("m2m_100", {"position": HALVES | {"endpoint": True, "offset": 1}} | PRE),
    ("bart", {"position": {"name": "learned", "offset": 2}, "embedding_norm": True, "head_bias": True}),
    ("mbart", {"position": {"name": "learned", "offset": 2}, "embedding_norm": True, "head_bias": True} | PRE),
    ("t5", LIKE_T5),
    ("t5", LIKE_T5 | {"head_dim": 5, "feed_forward": "geglu", "scale_output": False, "tie_embeddings": "inputs"} |
     {"feed_forward": {"name": "geglu", "tanh": True}}),
]  # fmt: skip


@pytest.mark.parametrize(("family", "changes"), TRAINED)
def test_a_translator_trained_here_is_opened_by_the_reference(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    ours = build(ModelConfig(vocab_size=VOCABULARY, **OWN, **changes), seed=1)
    with torch.no_grad():
        for tensor in named_state(ours).values():
            tensor.add_(torch.randn_like(tensor) * 0.1)
    run = Run(
        ours,
        train_tokenizer(TEXTS * 5, Choice("bpe"), VOCABULARY),
        GenerationConfig(beam_size=3, length_penalty=0.6),
    )
    run.save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    assert theirs.config.model_type == family
    source, target = ids(2, 9), ids(2, 7)
    with torch.no_grad():
        close(ours.eval()(source, target), theirs(input_ids=source, decoder_input_ids=target).logits)
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text, (best,) in zip(
        SOURCES, run.hypotheses(SOURCES, max_length_ratio=0, max_length_extra=12), strict=True
    ):
        read = torch.tensor([reader(text)["input_ids"]])
        assert best.tokens == words(theirs.generate(read, max_length=13, use_cache=False)[0].tolist(), 1)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("marian", {"head_bias": True}, "layout of position 'sinusoidal' is 'interleaved', there 'halves'"),
        ("marian", {"position": HALVES, "head_bias": True, "norm_first": True}, "norm_first is true, there false"),
        ("bart", {"position": {"name": "learned", "offset": 2}, "embedding_norm": True, "head_bias": True,
                  "cross_attention": {"name": "softmax", "scale": 1.0}}, "scale of cross_attention 'softmax' is 1.0, there null"),
        ("bart", {"position": {"name": "learned", "offset": 2}, "embedding_norm": True, "tie_embeddings": "target"},
         "tie_embeddings is 'target', there 'all'"),
        ("mbart", {"norm_first": True}, "position is 'sinusoidal', there 'learned'; embedding_norm is false, there true"),
        ("t5", LIKE_T5 | {"feed_forward": {"name": "geglu", "tanh": False}}, "tanh of feed_forward 'geglu' is false, there true"),
        ("m2m_100", PRE | {"position": "rope"}, "position is 'rope', there 'sinusoidal'"),
        ("t5", LIKE_T5 | {"decoder_block": "lstm"}, "decoder_block is 'lstm', there 'transformer'"),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_is_named(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        pick_family(ModelConfig(vocab_size=VOCABULARY, **OWN, **changes), family)
    assert str(error.value) == f"this model is none of that family: {message}"


def test_positions_of_m2m100_begin_after_the_padding(tmp_path: Path) -> None:
    config = ModelConfig(
        vocab_size=VOCABULARY, **OWN, **PRE, position=HALVES | {"endpoint": True, "offset": 2}
    )
    run = Run(
        build(config, seed=1), train_tokenizer(TEXTS * 5, Choice("bpe"), VOCABULARY), GenerationConfig()
    )
    with pytest.raises(UserError, match="none of the family 'm2m_100': its pad_token_id is 0, there 1"):
        export(run.model, run.tokenizer, run.generation)
