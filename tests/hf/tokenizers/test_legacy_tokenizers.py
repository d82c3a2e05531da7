"""Tokenizers from the files of checkpoints without a tokenizer.json, against those that the reference makes
of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
import transformers
from tests.hf.conftest import VOCABULARY, make
from tests.hf.tokenizers.spm_helpers import SOURCES, learnt, lines
from tests.hf.tokenizers.test_spm import cut

import polyhead as ph
from polyhead.core.errors import UserError
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer
from tokenizers import Tokenizer as Inner

ENGLISH = lines("guide.md")
OTHERS = [
    *lines("architecture.md"),
    *lines("guide.zh-CN.md", 60),
    "",
    "  two  blanks ",
    "Ünïcode, naïve Straße",
    "x\ty",
]
PAIR = ("a dog barks", "at two red dogs")
ENCODER = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20,
    "max_position_embeddings": 64,
}  # fmt: skip
FRAMED = ENCODER | {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}


def said(directory: Path, name: str, **keys: Any) -> None:
    (directory / name).write_text(json.dumps(keys))


def model(directory: Path, config: str, auto: str, size: int, **sizes: Any) -> Any:
    """A model of the reference without any file of a tokenizer."""
    directory.mkdir()
    theirs = make(directory, config, auto=auto, vocab_size=size, **sizes)
    for path in directory.glob("*token*"):
        path.unlink()
    return theirs


def bytes_of(directory: Path, specials: list[str]) -> None:
    """vocab.json and merges.txt, trained by the library's own trainer."""
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(ENGLISH, vocab_size=VOCABULARY, special_tokens=specials)
    trained.save_model(str(directory))


def gpt2(directory: Path, more: int = 0) -> None:
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "eos_token_id": 0, "bos_token_id": 0}
    model(directory, "GPT2Config", "AutoModelForCausalLM", VOCABULARY + more, **sizes)
    bytes_of(directory, ["<|endoftext|>"])
    said(directory, "generation_config.json", eos_token_id=0, bos_token_id=0)


def gpt_j(directory: Path) -> None:
    sizes = {
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 64,
        "rotary_dim": 4,
        "eos_token_id": 0,
        "bos_token_id": 0,
    }
    model(directory, "GPTJConfig", "AutoModelForCausalLM", VOCABULARY + 2, **sizes)
    bytes_of(directory, ["<|endoftext|>"])
    said(directory, "generation_config.json", eos_token_id=0, bos_token_id=0)
    said(directory, "added_tokens.json", **{"two  blanks": VOCABULARY + 1, "<|extra|>": VOCABULARY})
    said(directory, "tokenizer_config.json", add_prefix_space=True)


def opt(directory: Path) -> None:
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "ffn_dim": 20,
        "bos_token_id": 2,
    }
    model(directory, "OPTConfig", "AutoModelForCausalLM", VOCABULARY, **sizes)
    bytes_of(directory, ["<s>", "<pad>", "</s>", "<unk>"])
    said(directory, "tokenizer_config.json", add_bos_token=True, tokenizer_class="GPT2Tokenizer")
    roles = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>"}
    said(
        directory,
        "special_tokens_map.json",
        **{role: {"content": token, "lstrip": False} for role, token in roles.items()},
    )


def opt_ended(directory: Path) -> None:
    opt(directory)
    said(directory, "tokenizer_config.json", add_bos_token=True, add_eos_token=True)


def gpt2_more(directory: Path) -> None:
    """Tokens with all that a file of today says of them, which counts before one of older days."""
    gpt2(directory, more=1)
    theirs = {"lstrip": True, "rstrip": False, "normalized": False, "single_word": False, "special": False}
    more = {
        str(VOCABULARY): {"content": "blanks", **theirs},
        "0": {"content": "<|endoftext|>", "special": True},
    }
    said(directory, "tokenizer_config.json", added_tokens_decoder=more)
    said(directory, "added_tokens.json", never=7)


def roberta(directory: Path) -> None:
    model(directory, "RobertaConfig", "AutoModelForMaskedLM", VOCABULARY, **FRAMED)
    bytes_of(directory, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])


def bart(directory: Path) -> None:
    sizes = {
        "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1,
    }  # fmt: skip
    model(directory, "BartConfig", "AutoModelForSeq2SeqLM", VOCABULARY, **sizes, decoder_start_token_id=2)
    bytes_of(directory, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])


def pieces(directory: Path, config: str, sizes: dict[str, Any], more: int = 0, **keys: Any) -> None:
    none = {"bos_token_id": None, "eos_token_id": None}
    model(directory, config, "AutoModelForMaskedLM", VOCABULARY + more, **sizes, **none)
    trained = BertWordPieceTokenizer(lowercase=keys.get("do_lower_case", True))
    trained.train_from_iterator(ENGLISH, vocab_size=VOCABULARY)
    trained.save_model(str(directory))
    said(directory, "tokenizer_config.json", **keys)


def bert(directory: Path) -> None:
    pieces(directory, "BertConfig", ENCODER)


def bert_cased(directory: Path) -> None:
    pieces(directory, "BertConfig", ENCODER, do_lower_case=False, tokenize_chinese_chars=False)


def bert_accents(directory: Path) -> None:
    pieces(directory, "BertConfig", ENCODER, strip_accents=False)


def bert_more(directory: Path) -> None:
    """A token that is not special is met in what the normalizer has left of a text."""
    pieces(directory, "BertConfig", ENCODER, more=1)
    said(directory, "added_tokens.json", Blanks=VOCABULARY)


def distilbert(directory: Path) -> None:
    sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 20, "max_position_embeddings": 64}
    pieces(directory, "DistilBertConfig", sizes)


def electra(directory: Path) -> None:
    pieces(directory, "ElectraConfig", ENCODER | {"embedding_size": 8})


BY_BYTES = [gpt2, gpt2_more, gpt_j, opt, opt_ended, roberta, bart]
BY_PIECES = [bert, bert_cased, bert_accents, bert_more, distilbert, electra]


@pytest.mark.acceptance("F6")
@pytest.mark.parametrize("kind", [*BY_BYTES, *BY_PIECES], ids=lambda kind: str(kind.__name__))
def test_texts_are_cut_and_framed_as_by_the_reference(kind: Callable[[Path], None], tmp_path: Path) -> None:
    kind(tmp_path / "m")
    theirs, run = transformers.AutoTokenizer.from_pretrained(tmp_path / "m"), ph.load(tmp_path / "m")
    ours, inner = run.tokenizer, Inner.from_str(run.tokenizer.tokenizer_json)
    plain = theirs(OTHERS, add_special_tokens=False).input_ids
    assert ours.encode(OTHERS) == plain
    assert ours.decode(plain) == theirs.batch_decode(
        plain, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    framed, pair = theirs(PAIR[0]), theirs(*PAIR)
    assert inner.encode(PAIR[0]).ids == framed.input_ids
    assert inner.encode(*PAIR).ids == pair.input_ids
    if "token_type_ids" in pair:
        assert inner.encode(*PAIR).type_ids == pair.token_type_ids
    assert ours.role_ids.get("mask_token") == theirs.mask_token_id
    assert ours.eos_id == (theirs.sep_token_id if theirs.sep_token_id is not None else theirs.eos_token_id)
    run.save(tmp_path / "run")
    assert ph.load(tmp_path / "run").tokenizer.encode(OTHERS) == plain


def test_a_mask_takes_the_blank_before_it_where_words_begin_with_one(tmp_path: Path) -> None:
    for kind, leads in ((roberta, True), (bert, False)):
        kind(tmp_path / kind.__name__)
        tokenizer = ph.load(tmp_path / kind.__name__).tokenizer
        (mask,) = (
            special
            for special in tokenizer.special_tokens.values()
            if special.id == tokenizer.role_ids["mask_token"]
        )
        assert (mask.lstrip, mask.rstrip) == (leads, False)


def test_a_special_token_in_a_text_is_only_text(tmp_path: Path) -> None:
    opt(tmp_path / "m")
    tokenizer = ph.load(tmp_path / "m").tokenizer
    (ids,) = tokenizer.encode(["</s> <pad>"])
    assert tokenizer.eos_id not in ids
    assert tokenizer.decode([ids]) == ["</s> <pad>"]


TRANSLATOR = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "max_position_embeddings": 64, "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1, "forced_eos_token_id": 2, "init_std": 0.4,
}  # fmt: skip


def of_fairseq(directory: Path) -> tuple[Any, int]:
    """A model of pieces under its published name, and how many tokens fairseq makes of it before any
    language.
    """
    directory.mkdir()
    trained = learnt(directory, "m", ENGLISH)
    (directory / "m.spm").rename(directory / "sentencepiece.bpe.model")
    return trained, len(trained) + 1


def built(directory: Path, of: Any, config: Any) -> Any:
    torch.manual_seed(0)
    found = of(config).eval()
    found.save_pretrained(directory)
    return found


def shifted(trained: sentencepiece.SentencePieceProcessor, text: str) -> list[int]:
    """fairseq has a token for padding before the pieces, and the unknown one behind the others of its own."""
    return [3 if i == trained.unk_id() else i + 1 for i in trained.encode(text)]


@pytest.mark.parametrize("second", [False, True], ids=["mbart", "mbart-50"])
def test_mbart_has_the_pieces_of_fairseq_and_a_token_for_each_language(second: bool, tmp_path: Path) -> None:
    trained, size = of_fairseq(tmp_path / "m")
    count = 52 if second else 25
    start = 2 if second else size + 19  # ro_RO, as the one from English has it
    config = transformers.MBartConfig(**TRANSLATOR, vocab_size=size + count + 1, decoder_start_token_id=start)
    theirs = built(tmp_path / "m", transformers.MBartForConditionalGeneration, config)
    name = "MBart50Tokenizer" if second else "MBartTokenizer"
    said(tmp_path / "m", "tokenizer_config.json", tokenizer_class=name, src_lang=None, tgt_lang=None)
    run = ph.load(tmp_path / "m")
    for text in [line for line in ENGLISH if line.strip()]:
        assert run.tokenizer.encode([text]) == [shifted(trained, text)]
    german, french, last = size + 2, size + 7, size + count
    assert run.tokenizer.ids_to_tokens([german, french, last]) == ["de_DE", "fr_XX", "<mask>"]
    with torch.no_grad():
        for text in SOURCES:
            ids = shifted(trained, text)
            source = [german, *ids, 2] if second else [*ids, 2, german]
            out = theirs.generate(
                torch.tensor([source]), forced_bos_token_id=french if second else None,
                decoder_start_token_id=2 if second else french, max_new_tokens=12, num_beams=1,
            )  # fmt: skip
            (found,) = run.hypotheses([text], n_best=1, source_lang="de_DE", target_lang="fr_XX")
            skip = 2 if second else 1
            assert cut([out[0].tolist()[skip:]], 2)[0][:10] == found[0].tokens[:10]


def test_xlm_roberta_has_the_pieces_of_fairseq_framed(tmp_path: Path) -> None:
    trained, size = of_fairseq(tmp_path / "m")
    config = transformers.XLMRobertaConfig(**FRAMED | {"max_position_embeddings": 70}, vocab_size=size + 1)
    built(tmp_path / "m", transformers.XLMRobertaForMaskedLM, config)
    run = ph.load(tmp_path / "m")
    texts = [line for line in ENGLISH if line.strip()]
    assert run.tokenizer.encode(texts) == [shifted(trained, text) for text in texts]
    assert run.tokenizer.role_ids["mask_token"] == size
    first, second = (shifted(trained, text) for text in PAIR)
    inner = Inner.from_str(run.tokenizer.tokenizer_json)
    assert inner.encode(PAIR[0]).ids == [0, *first, 2]
    assert inner.encode(*PAIR).ids == [0, *first, 2, 2, *second, 2]


def llama(directory: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}
    model(directory, "LlamaConfig", "AutoModelForCausalLM", VOCABULARY, **sizes)


def named(directory: Path, tokenizer: str) -> None:
    """config.json says of which class the tokenizer is, as files did before there was one of its own."""
    config = json.loads((directory / "config.json").read_text())
    said(directory, "config.json", **config, tokenizer_class=tokenizer)


MISTAKES: list[tuple[Callable[[Path], None], Callable[[Path], Any], str]] = [
    (llama, lambda d: None, "{0} has no tokenizer.json (there: config.json, generation_config.json, "
                            "model.safetensors); save_pretrained of"),
    (gpt2, lambda d: (d / "merges.txt").unlink(), "{0} has neither tokenizer.json nor vocab.json and "
        "merges.txt"),
    (gpt2, lambda d: (d / "vocab.json").unlink(), "{0} has neither tokenizer.json nor vocab.json and "
        "merges.txt"),
    (gpt2, lambda d: (d / "merges.txt").write_text("a b\nqq zz\n"), "{0}: vocab.json and merges.txt do not "
        "match: "),
    (gpt2, lambda d: (d / "merges.txt").write_text("a b c\n"), "{0}: vocab.json and merges.txt do not "
        "match: "),
    (gpt2, lambda d: said(d, "vocab.json", a="b"), "{0}: vocab.json and merges.txt do not match: "),
    (gpt2, lambda d: (d / "merges.txt").write_bytes(b"\xff"), "{0}/merges.txt is not UTF-8 text (byte 0)"),
    (gpt_j, lambda d: said(d, "added_tokens.json", new=VOCABULARY + 7), "{0}/added_tokens.json gives 'new' "
        "the id 307, but in the vocabulary it is 300"),
    (gpt_j, lambda d: said(d, "added_tokens.json", new="1"), "{0}/added_tokens.json must map tokens to ids"),
    (gpt_j, lambda d: said(d, "tokenizer_config.json", added_tokens_decoder={"300": "new"}),
        "{0}/tokenizer_config.json: added_tokens_decoder must map ids to tokens"),
    (gpt_j, lambda d: said(d, "tokenizer_config.json", add_prefix_space="no"), "tokenizer_config.json: "
        "add_prefix_space is 'no', expected true"),
    (bert, lambda d: said(d, "tokenizer_config.json", tokenizer_class="BertJapaneseTokenizer"),
        "{0}: tokenizer_class is 'BertJapaneseTokenizer'; without a tokenizer.json supported: "
        "BertTokenizer, "),
    (roberta, lambda d: named(d, "CodeGenTokenizer"), "{0}: tokenizer_class is 'CodeGenTokenizer'; without "
        "a tokenizer.json supported: RobertaTokenizer, "),
    (gpt2, lambda d: named(d, "Qwen2TokenizerFast"), "{0}: tokenizer_class is 'Qwen2Tokenizer'; without a "
        "tokenizer.json supported: GPT2Tokenizer, "),
    (bert, lambda d: (d / "vocab.txt").unlink(), "{0} has neither tokenizer.json nor vocab.txt"),
    (bert, lambda d: (d / "vocab.txt").write_text("[PAD]\nthe\n"), "{0}/vocab.txt has no line with the "
        "token [UNK]"),
    (bert, lambda d: said(d, "tokenizer_config.json", strip_accents="all"), "tokenizer_config.json: "
        "strip_accents is 'all', expected true or"),
]  # fmt: skip


@pytest.mark.acceptance("F6", "F10")
@pytest.mark.parametrize(("kind", "spoil", "message"), MISTAKES)
def test_what_is_wrong_is_named(
    kind: Callable[[Path], None], spoil: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    kind(tmp_path / "m")
    spoil(tmp_path / "m")
    with pytest.raises(UserError) as error:
        ph.load(tmp_path / "m")
    assert message.format(tmp_path / "m") in str(error.value)
    assert "\n" not in str(error.value)
