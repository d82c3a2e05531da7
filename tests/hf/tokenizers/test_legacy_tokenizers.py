import json
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from tests.hf.conftest import VOCABULARY, build_once, edit_json, make
from tests.hf.tokenizers.spm_helpers import SOURCES, read_lines, train_spm
from tests.hf.tokenizers.test_spm import before_end

import polyhead as ph
from polyhead.core.errors import UserError
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer
from tokenizers import Tokenizer as Inner

ENGLISH = list(read_lines("guide.md"))


NONEMPTY = [line for line in ENGLISH if line.strip()]
DAMAGES = yaml.safe_load((Path(__file__).parent / "damaged_files.yaml").read_text(encoding="utf-8"))


TEXTS = [*read_lines("architecture.md"), *read_lines("guide.zh-CN.md", 60)]
TEXTS += ["", "  two  blanks ", "Ünïcode, naïve Straße", "x\ty"]
PAIR = ("a dog barks", "at two red dogs")
ENCODER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}
ENCODER |= {"max_position_embeddings": 64}
ROBERTA_ENCODER = ENCODER | {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
GPT2_SIZES = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
GPT2_SIZES |= {"eos_token_id": 0, "bos_token_id": 0}
CONFIG, ADDED_TOKENS = "tokenizer_config.json", "added_tokens.json"


def write_json(directory, name, content):
    (directory / name).write_text(json.dumps(content))


def make_without_tokenizer(directory, config, auto, size, **sizes):
    directory.mkdir(exist_ok=True)
    make(directory, config, auto=auto, vocab_size=size, files_only=True, **sizes)
    for path in directory.glob("*token*"):
        path.unlink()


def save_byte_bpe(directory, special_tokens):
    """vocab.json and merges.txt, trained by the library's own trainer."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(ENGLISH, vocab_size=VOCABULARY, special_tokens=special_tokens)
    tokenizer.save_model(str(directory))


def gpt2(directory, n_added=0, config="GPT2Config", **sizes):
    size = VOCABULARY + n_added
    make_without_tokenizer(directory, config, "AutoModelForCausalLM", size, **GPT2_SIZES | sizes)
    save_byte_bpe(directory, ["<|endoftext|>"])
    write_json(directory, "generation_config.json", {"eos_token_id": 0, "bos_token_id": 0})


def gpt2_added(directory):
    """Added tokens with all their options, which count before the older file."""
    gpt2(directory, n_added=1)
    options = {"lstrip": True, "rstrip": False, "normalized": False, "single_word": False, "special": False}
    added_tokens = {str(VOCABULARY): {"content": "blanks", **options}}
    added_tokens["0"] = {"content": "<|endoftext|>", "special": True}
    write_json(directory, CONFIG, {"added_tokens_decoder": added_tokens})
    write_json(directory, ADDED_TOKENS, {"never": 7})


def gpt_j(directory):
    gpt2(directory, n_added=2, config="GPTJConfig", rotary_dim=4)
    write_json(directory, ADDED_TOKENS, {"two  blanks": VOCABULARY + 1, "<|extra|>": VOCABULARY})
    write_json(directory, CONFIG, {"add_prefix_space": True})


def opt(directory, **keys):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 20}
    make_without_tokenizer(
        directory, "OPTConfig", "AutoModelForCausalLM", VOCABULARY, bos_token_id=2, **sizes
    )
    save_byte_bpe(directory, ["<s>", "<pad>", "</s>", "<unk>"])
    write_json(directory, CONFIG, keys or {"add_bos_token": True, "tokenizer_class": "GPT2Tokenizer"})
    token = {"content": "</s>", "lstrip": False}
    roles = {role: token for role in ("bos_token", "eos_token", "unk_token")}  # noqa: C420
    write_json(directory, "special_tokens_map.json", roles)


def roberta(directory):
    make_without_tokenizer(directory, "RobertaConfig", "AutoModelForMaskedLM", VOCABULARY, **ROBERTA_ENCODER)
    save_byte_bpe(directory, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])


SIDES = {"layers": 1, "attention_heads": 2, "ffn_dim": 20}
BART = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in SIDES.items()}
BART |= {"d_model": 16, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}


def bart(directory):
    sizes = BART | {"decoder_start_token_id": 2}
    make_without_tokenizer(directory, "BartConfig", "AutoModelForSeq2SeqLM", VOCABULARY, **sizes)
    save_byte_bpe(directory, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])


def bert(directory, config="BertConfig", sizes=ENCODER, n_added=0, **keys):
    ids, size = {"bos_token_id": None, "eos_token_id": None}, VOCABULARY + n_added
    make_without_tokenizer(directory, config, "AutoModelForMaskedLM", size, **sizes, **ids)
    tokenizer = BertWordPieceTokenizer(lowercase=keys.get("do_lower_case", True))
    tokenizer.train_from_iterator(ENGLISH, vocab_size=VOCABULARY)
    tokenizer.save_model(str(directory))
    write_json(directory, CONFIG, keys)


def bert_added(directory):
    """A token that is not special is looked up in the normalized text."""
    bert(directory, n_added=1)
    write_json(directory, ADDED_TOKENS, {"Blanks": VOCABULARY})


def distilbert(directory):
    sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 20, "max_position_embeddings": 64}
    bert(directory, "DistilBertConfig", sizes)


SAVES = [gpt2, gpt2_added, gpt_j, opt, roberta, bart, bert, bert_added, distilbert]
CHECKPOINTS = {save.__name__: save for save in SAVES} | {
    "opt_eos": partial(opt, add_bos_token=True, add_eos_token=True),
    "bert_cased": partial(bert, do_lower_case=False, tokenize_chinese_chars=False),
    "bert_accents": partial(bert, strip_accents=False),
    "electra": partial(bert, config="ElectraConfig", sizes=ENCODER | {"embedding_size": 8}),
}


@build_once
def save_checkpoint(directory, save):
    save(directory)


@pytest.mark.acceptance("F6")
@pytest.mark.whole
@pytest.mark.parametrize("save", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_tokenizer_equals_reference(save, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    save_checkpoint(checkpoint, save)
    reference, run = transformers.AutoTokenizer.from_pretrained(checkpoint), ph.load(checkpoint)
    tokenizer, inner = run.tokenizer, Inner.from_str(run.tokenizer.tokenizer_json)
    ids = reference(TEXTS, add_special_tokens=False).input_ids
    assert tokenizer.encode(TEXTS) == ids
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    assert tokenizer.decode(ids) == reference.batch_decode(ids, **options)
    single, pair = reference(PAIR[0]), reference(*PAIR)
    assert inner.encode(PAIR[0]).ids == single.input_ids and inner.encode(*PAIR).ids == pair.input_ids
    if "token_type_ids" in pair:
        assert inner.encode(*PAIR).type_ids == pair.token_type_ids
    assert tokenizer.role_ids.get("mask_token") == reference.mask_token_id
    has_separator = reference.sep_token_id is not None
    assert tokenizer.eos_id == (reference.sep_token_id if has_separator else reference.eos_token_id)
    if save in (roberta, bert):  # in byte vocabularies the mask takes the space before it
        tokens = {token.id: token for token in tokenizer.special_tokens.values()}
        mask = tokens[tokenizer.role_ids["mask_token"]]
        assert (mask.lstrip, mask.rstrip) == (save is roberta, False)
    if save is opt:
        (text_ids,) = tokenizer.encode(["</s> <pad>"])
        assert tokenizer.eos_id not in text_ids and tokenizer.decode([text_ids]) == ["</s> <pad>"]
    run.save(tmp_path / "run")
    assert ph.load(tmp_path / "run").tokenizer.encode(TEXTS) == ids


TRANSLATOR = BART | {"max_position_embeddings": 64, "forced_eos_token_id": 2, "init_std": 0.4}


def train_fairseq_pieces(directory):
    """Pieces under their published name, and how many tokens fairseq makes of them before any language."""
    model = train_spm(directory, "m", tuple(ENGLISH))
    (directory / "m.spm").rename(directory / "sentencepiece.bpe.model")
    return model, len(model) + 1


def save_model(directory, model_class, config):
    torch.manual_seed(0)
    model = model_class(config).eval()
    model.save_pretrained(directory)
    return model


def fairseq_ids(model, text):
    """fairseq has a token for padding before the pieces, and the unknown one behind the others of its own."""
    return [3 if i == model.unk_id() else i + 1 for i in model.encode(text)]


@pytest.mark.parametrize("is_mbart50", [False, True], ids=["mbart", "mbart-50"])
def test_mbart_has_fairseq_ids_and_language_tokens(is_mbart50, tmp_path):
    pieces, size = train_fairseq_pieces(tmp_path)
    n_languages = 52 if is_mbart50 else 25
    start = 2 if is_mbart50 else size + 19  # ro_RO, as the one from English has it
    vocab_size = size + n_languages + 1
    config = transformers.MBartConfig(**TRANSLATOR, vocab_size=vocab_size, decoder_start_token_id=start)
    reference = save_model(tmp_path, transformers.MBartForConditionalGeneration, config)
    name = "MBart50Tokenizer" if is_mbart50 else "MBartTokenizer"
    write_json(tmp_path, CONFIG, {"tokenizer_class": name, "src_lang": None, "tgt_lang": None})
    run = ph.load(tmp_path)
    assert run.tokenizer.encode(NONEMPTY) == [fairseq_ids(pieces, text) for text in NONEMPTY]
    german, french, last = size + 2, size + 7, size + n_languages
    assert run.tokenizer.ids_to_tokens([german, french, last]) == ["de_DE", "fr_XX", "<mask>"]
    hypotheses = run.hypotheses(SOURCES, n_best=1, source_lang="de_DE", target_lang="fr_XX")
    for text, (best,) in zip(SOURCES, hypotheses, strict=True):
        ids = fairseq_ids(pieces, text)
        output = reference.generate(
            torch.tensor([[german, *ids, 2] if is_mbart50 else [*ids, 2, german]]),
            forced_bos_token_id=french if is_mbart50 else None,
            decoder_start_token_id=2 if is_mbart50 else french,
            max_new_tokens=12,
            num_beams=1,
        )
        (expected,) = before_end([output[0].tolist()[2 if is_mbart50 else 1 :]], 2)
        assert best.tokens[:10] == expected[:10]


def test_xlm_roberta_has_fairseq_ids(tmp_path):
    pieces, size = train_fairseq_pieces(tmp_path)
    sizes = ROBERTA_ENCODER | {"max_position_embeddings": 70}
    config = transformers.XLMRobertaConfig(**sizes, vocab_size=size + 1)
    save_model(tmp_path, transformers.XLMRobertaForMaskedLM, config)
    tokenizer = ph.load(tmp_path).tokenizer
    assert tokenizer.encode(NONEMPTY) == [fairseq_ids(pieces, text) for text in NONEMPTY]
    assert tokenizer.role_ids["mask_token"] == size
    first, second = (fairseq_ids(pieces, text) for text in PAIR)
    inner = Inner.from_str(tokenizer.tokenizer_json)
    assert inner.encode(PAIR[0]).ids == [0, *first, 2]
    assert inner.encode(*PAIR).ids == [0, *first, 2, 2, *second, 2]


def llama(directory):
    sizes = {key: ENCODER[key] for key in list(ENCODER)[:4]}
    make_without_tokenizer(directory, "LlamaConfig", "AutoModelForCausalLM", VOCABULARY, **sizes)


@pytest.mark.whole
@pytest.mark.acceptance("F6", "F10")
@pytest.mark.parametrize(("save", "changes", "message"), DAMAGES)
def test_damaged_files_are_refused(save, changes, message, tmp_path):
    save_checkpoint(tmp_path, (CHECKPOINTS | {"llama": llama})[save])
    for name, content in changes.items():
        path = tmp_path / name
        if content is None:
            path.unlink()
        elif name == "config.json":  # as files named the class before there was tokenizer_config.json
            edit_json(path, **content)
        elif isinstance(content, dict):
            write_json(tmp_path, name, content)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as error:
        ph.load(tmp_path)
    assert message.format(tmp_path) in str(error.value) and "\n" not in str(error.value)
