import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.hf.conftest import edit_json, export_run, random_run
from tests.hf.families import seq2seq
from tests.hf.families.case_table import Case
from tests.hf.families.laws import open_reference, round_trip
from tests.hf.families.seq2seq_cases import CASES
from tests.hf.load_helpers import load_model
from tests.hf.save_helpers import CONFIGS, model_config

import polyhead as ph
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.nn.state import named_state

LIKE_BART = ["bart", "mbart", "marian", "pegasus", "m2m_100"]
Seq2SeqLM = transformers.AutoModelForSeq2SeqLM


@pytest.mark.parametrize("name", LIKE_BART)
def test_shared_embeddings_with_untied_head(name, tmp_path):
    """As in files of transformers 4; the exported ones have a copy for each side."""
    case, checkpoint = CASES[name][-1], tmp_path / "checkpoint"
    options = {"share_encoder_decoder_embeddings": True} if name == "marian" else {}
    reference = seq2seq.make_seq2seq(checkpoint, Case(case.config, case.sizes | options))
    source, target = seq2seq.random_ids(2, 9), seq2seq.random_ids(2, 7)
    inputs = {"input_ids": source, "decoder_input_ids": target}
    shared_weight, head = reference.model.shared.weight, reference.lm_head.weight
    with torch.no_grad():
        reference.model.encoder.embed_tokens.weight.copy_(shared_weight)
        reference.model.decoder.embed_tokens.weight.copy_(shared_weight)
        expected = reference(**inputs).logits
    tensors = load_file(checkpoint / "model.safetensors")
    seq2seq.rewrite_weights(
        checkpoint, {n: t for n, t in tensors.items() if not n.endswith("embed_tokens.weight")}
    )
    model = load_model(checkpoint)
    assert model.config.tie_embeddings == "inputs"
    assert torch.equal(named_state(model)["encoder_embedding.token.weight"], shared_weight)
    assert torch.equal(named_state(model)["head.weight"], head)
    _, exported_dir = round_trip(checkpoint)
    with torch.no_grad():
        seq2seq.assert_close(model(source, target), expected)
        seq2seq.assert_close(open_reference("AutoModelForSeq2SeqLM", exported_dir)(**inputs).logits, expected)
        seq2seq.assert_close(load_model(exported_dir)(source, target), expected)


LABELS = {"id2label": {str(i): f"LABEL_{i}" for i in range(3)}, "label2id": {"LABEL_0": 0}}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (
            "bart",
            {"normalize_before": False, "extra_pos_embeddings": 2, "save_step": 58, "classif_dropout": 0.0},
        ),
        ("mbart", {"normalize_before": True, "add_final_layer_norm": True, "max_length": 25, "num_beams": 3}),
        ("marian", {"normalize_before": False, "normalize_embedding": False}),
        ("marian", {"static_position_embeddings": True}),
        ("t5", {"task_specific_params": {"summarization": {"num_beams": 4}}}),
    ],
)
def test_unread_keys_of_older_configs(name, keys, tmp_path):
    """Those of OPUS-MT, BART for summaries and others; the reference ignores the same keys."""
    seq2seq.make_seq2seq(tmp_path, CASES[name][0])
    expected = ph.load(tmp_path).config
    older = {"_num_labels": 3, "output_past": True, "gradient_checkpointing": False}
    edit_json(tmp_path / "config.json", **older, **LABELS, **keys)
    assert ph.load(tmp_path).config == expected and Seq2SeqLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", LIKE_BART)
def test_default_of_decoder_heads_is_not_the_encoders(name, tmp_path):
    """Without decoder_attention_heads the decoder has 16, as in the reference."""
    case, config = CASES[name][0], tmp_path / "config.json"
    sizes = {"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    seq2seq.make_seq2seq(tmp_path, Case(case.config, case.sizes | sizes))
    edit_json(config, ("decoder_attention_heads",))
    assert transformers.AutoConfig.from_pretrained(tmp_path).decoder_attention_heads == 16
    message = "decoder_attention_heads is 16, expected 2, the only supported value"
    with pytest.raises(UserError, match=message):
        load_model(tmp_path)
    edit_json(config, encoder_attention_heads=16)
    model, (source, target) = load_model(tmp_path), (seq2seq.random_ids(2, 9), seq2seq.random_ids(2, 7))
    reference = Seq2SeqLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        seq2seq.assert_close(
            model(source, target), reference(input_ids=source, decoder_input_ids=target).logits
        )


@pytest.mark.parametrize(("family", "parts"), CONFIGS["translators"])
def test_exported_translator_opens_in_reference(family, parts, tmp_path):
    run = random_run(model_config(**parts), GenerationConfig(beam_size=3, length_penalty=0.6), noise=0.1)
    export_run(run, tmp_path)
    reference = Seq2SeqLM.from_pretrained(tmp_path / "exported").eval()
    assert reference.config.model_type == family
    source, target = seq2seq.random_ids(2, 9), seq2seq.random_ids(2, 7)
    with torch.no_grad():
        expected = reference(input_ids=source, decoder_input_ids=target).logits
        seq2seq.assert_close(run.model.eval()(source, target), expected)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    hypotheses = run.hypotheses(seq2seq.SOURCES[:2], max_length_ratio=0, max_length_extra=12)
    for text, (best,) in zip(seq2seq.SOURCES[:2], hypotheses, strict=True):
        input_ids = torch.tensor([tokenizer(text)["input_ids"]])
        output = reference.generate(input_ids, max_length=13, use_cache=False)
        assert best.tokens == seq2seq.strip_ends(output[0].tolist(), 1)
