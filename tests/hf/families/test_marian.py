from safetensors.torch import load_file
from tests.hf.families.seq2seq import Seq2SeqFamily, assert_same_logits, make_seq2seq
from tests.hf.families.seq2seq_cases import CASES, Case
from tests.hf.load_helpers import load_model


class TestMarian(Seq2SeqFamily, names=["marian"]): ...


def test_untied_embeddings_with_share_option_are_separate(tmp_path):
    """share_encoder_decoder_embeddings has no effect where tie_word_embeddings is false."""
    sizes = CASES["marian"][-1].sizes | {"share_encoder_decoder_embeddings": True}
    reference = make_seq2seq(tmp_path, Case("MarianConfig", sizes))

    assert "model.shared.weight" in load_file(tmp_path / "model.safetensors")
    model = load_model(tmp_path)
    assert model.config.tie_embeddings == "none"
    assert_same_logits(model, reference)


class TestPegasus(Seq2SeqFamily, names=["pegasus"]): ...
