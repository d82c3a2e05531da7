"""Encoder-decoders against the reference implementation: logits, translations and their scores, the same
files again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.hf.conftest import TEXTS, VOCABULARY
from tests.hf.families.seq2seq import SOURCES, close, ids, published, rewritten, words
from tests.hf.families.seq2seq_cases import CASES, Case

import polyhead as ph
from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.hf.load import load_model
from polyhead.hf.save import pick_family
from polyhead.nn.state import named_state
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer


def changed(directory: Path, **values: Any) -> None:
    path = directory / "config.json"
    path.write_text(
        json.dumps({k: v for k, v in (json.loads(path.read_text()) | values).items() if v != "gone"})
    )


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


@pytest.mark.parametrize("name", ["bart", "mbart", "marian", "pegasus", "m2m_100"])
def test_of_a_decoder_nothing_follows_from_the_encoder(name: str, tmp_path: Path) -> None:
    """A config that does not say the decoder's heads means 16, as in the reference, and not those of the
    encoder.
    """
    case = CASES[name][0]
    sizes = case.sizes | {"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    published(tmp_path, Case(case.config, sizes))
    changed(tmp_path, decoder_attention_heads="gone")
    assert transformers.AutoConfig.from_pretrained(tmp_path).decoder_attention_heads == 16
    with pytest.raises(
        UserError, match="decoder_attention_heads is 16, expected 2, the only supported value"
    ):
        load_model(tmp_path)
    changed(tmp_path, encoder_attention_heads=16)
    ours, (source, target) = load_model(tmp_path), (ids(2, 9), ids(2, 7))
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        close(ours(source, target), theirs(input_ids=source, decoder_input_ids=target).logits)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (
            "bart",
            {"decoder_attention_heads": 2},
            "decoder_attention_heads is 2, expected 3, the only supported value",
        ),
        ("marian", {"decoder_ffn_dim": 21}, "decoder_ffn_dim is 21, expected 20, the only supported value"),
        (
            "marian",
            {"decoder_vocab_size": 200},
            "decoder_vocab_size is 200, expected 300, the only supported value",
        ),
        ("bart", {"tie_word_embeddings": False}, "missing: lm_head.weight"),
        (
            "bart",
            {"normalize_before": True},
            "normalize_before is true, expected false, the only supported value",
        ),
        (
            "mbart",
            {"activation_function": "quick_gelu"},
            "activation_function is 'quick_gelu', expected one of",
        ),
        (
            "t5",
            {"feed_forward_proj": "gated-gelu-new"},
            "feed_forward_proj is 'gated-gelu-new', expected one of",
        ),
        ("t5", {"dense_act_fn": "silu"}, "dense_act_fn is 'silu', expected 'relu', the only supported value"),
        (
            "mt5",
            {"dense_act_fn": "gelu"},
            "dense_act_fn is 'gelu', expected 'gelu_new', the only supported value",
        ),
        ("t5", {"relative_attention_num_buckets": 7}, "buckets of t5 is 7; with two sides it must be even"),
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
LIKE_T5 = PRE | {"position": "t5", "norm": {"name": "rmsnorm", "eps": 1e-6}, "attention": {"name": "softmax",
    "scale": 1.0, "bias": False},
                 "feed_forward": {"name": "relu", "bias": False}, "scale_embedding": False,
                     "logits_scale": True}  # fmt: skip
TRAINED = [
    ("marian", {"position": HALVES, "lm_head_bias": True, "feed_forward": "silu"}),
    ("marian", {"position": HALVES, "tie_embeddings": "target"}),
    ("marian", {"position": HALVES, "tie_embeddings": "none"}),
    ("marian", {"position": HALVES, "tie_embeddings": "inputs"}),
    ("m2m_100", {"position": HALVES | {"endpoint": True, "offset": 1}, "tie_embeddings": "none"} | PRE),
    ("m2m_100", {"position": HALVES | {"endpoint": True, "offset": 1}, "tie_embeddings": "inputs"} | PRE),
    ("m2m_100", {"position": HALVES | {"endpoint": True, "offset": 1}} | PRE),
    ("bart", {"position": {"name": "learned", "offset": 2}, "embedding_norm": True, "lm_head_bias": True}),
    ("mbart", {"position": {"name": "learned", "offset": 2}, "embedding_norm": True,
        "lm_head_bias": True} | PRE),
    ("t5", LIKE_T5),
    ("t5", LIKE_T5 | {"head_dim": 5, "feed_forward": "geglu", "logits_scale": False,
        "tie_embeddings": "inputs"} |
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
        ("marian", {"lm_head_bias": True}, "layout of position 'sinusoidal' is 'interleaved', expected "
                                           "'halves'"),
        ("marian", {"position": HALVES, "lm_head_bias": True, "norm_first": True}, "norm_first is true, "
            "expected false"),
        ("bart", {"position": {"name": "learned", "offset": 2}, "embedding_norm": True, "lm_head_bias": True,
                  "cross_attention": {"name": "softmax", "scale": 1.0}}, "scale of cross_attention "
                      "'softmax' is 1.0, expected null"),
        ("bart", {"position": {"name": "learned", "offset": 2}, "embedding_norm": True,
            "tie_embeddings": "target"},
         "tie_embeddings is 'target', expected 'all'"),
        ("mbart", {"norm_first": True}, "position is 'sinusoidal', expected 'learned'; embedding_norm is "
                                        "false, expected true"),
        ("t5", LIKE_T5 | {"feed_forward": {"name": "geglu", "tanh": False}}, "tanh of feed_forward 'geglu' "
            "is false, expected true"),
        ("m2m_100", PRE | {"position": "rope"}, "position is 'rope', expected 'sinusoidal'"),
        ("t5", LIKE_T5 | {"decoder_block": "lstm"}, "decoder_block is 'lstm', expected 'transformer'"),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_is_named(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        pick_family(ModelConfig(vocab_size=VOCABULARY, **OWN, **changes), family)
    assert str(error.value) == f"this model does not belong to that family: {message}"
