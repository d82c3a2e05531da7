"""Encoders of a family against the reference implementation: logits, vectors, files, labels and roles."""

import json

import pytest
import torch
import transformers
from tests.hf.conftest import TEXTS, VOCABULARY, build_once, make
from tests.hf.families import laws
from tests.hf.families.encoders_cases import BARE, CASES, CLASSES, MLM, MODERN, Case
from tests.hf.load_helpers import load_model

import polyhead as ph
from polyhead.cli import main
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers

WITH_SEGMENTS = ("Bert", "Roberta", "Electra", "Albert", "Deberta", "Nomic", "Gte")
POSITIONS_FROM_PADDING = ("Roberta", "XLMRoberta", "Camembert", "MPNet")  # from the id of padding on
MEAN_POOLING = Case("ModernBertConfig", MLM, {**MODERN, "classifier_pooling": "mean"})


def all_rows(names):
    return laws.list_rows(CASES, names)


def masked_rows(names):
    """The rows that fill masks, of ModernBERT also with the mean as the vector of a text."""
    rows = [row for row in all_rows(names) if row.values[0].auto == MLM]
    return rows + ([pytest.param(MEAN_POOLING, id="modernbert-mean")] if "modernbert" in names else [])


def first_rows_of_heads(names):
    """By default the first row of each family, and the first one with classes."""
    firsts, rows = {}, all_rows(names)
    for row in rows:
        firsts.setdefault((row.values[0].config, row.values[0].auto), row.id)
    return laws.slow_unless(lambda row: row.id in firsts.values() and row.values[0].auto != BARE, rows)


def save_wordpiece(directory, **options):
    """The tokenizer of BERT: [CLS] text [SEP], and a second text with [SEP] in segment 1."""
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=list(roles.values()))
    inner.train_from_iterator(TEXTS, trainer)
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **roles, **options)
    tokenizer.save_pretrained(directory)


def save_byte_bpe(directory, **options):
    """The tokenizer of RoBERTa: bytes, <s> text </s></s> second </s>, one segment."""
    special_tokens = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=299, special_tokens=special_tokens, initial_alphabet=alphabet)
    inner.train_from_iterator(TEXTS, trainer)
    inner.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    roles = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>"}
    options |= {f"{role}_token": token for role, token in roles.items()} | {"mask_token": "<mask>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **options).save_pretrained(directory)


def scored_pieces():
    words = sorted({word for text in TEXTS for word in text.split()})
    return [
        *((f"▁{word}", -3 - 0.1 * i) for i, word in enumerate(words)),
        *((letter, -6 - 0.1 * i) for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz")),
    ]


def save_albert_unigram(directory, **options):
    """Unigram pieces in lower case between the roles of BERT in ALBERT's spelling."""
    roles = [(name, 0.0) for name in ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")]
    transformers.AlbertTokenizer(vocab=[*roles, *scored_pieces()], **options).save_pretrained(directory)


def save_deberta_unigram(directory, **options):
    """The pieces of DeBERTa-v3 keep the case of the text, and [MASK] is the last one."""
    roles = [(name, 0.0) for name in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")]
    vocab = [*roles, *scored_pieces(), ("[MASK]", 0.0)]
    transformers.DebertaV2Tokenizer(vocab=vocab, unk_id=3, **options).save_pretrained(directory)


@build_once
def make_encoder(directory, case, **options):
    model = make(directory, case.config, auto=case.auto, **case.sizes, **options)
    inputs = ["input_ids", *["token_type_ids"] * has_segments(case), "attention_mask"]
    savers = {"AlbertConfig": save_albert_unigram, "DebertaV2Config": save_deberta_unigram}
    save_tokenizer = savers.get(case.config, save_wordpiece)
    if case.config.startswith(POSITIONS_FROM_PADDING):
        save_tokenizer = save_byte_bpe
    save_tokenizer(directory, model_input_names=inputs)
    return model


def reference_output(model, *args, **kwargs):
    output = model(*args, **kwargs)
    if "start_logits" in output:  # of answers
        return torch.stack((output.start_logits, output.end_logits), -1)
    return output.logits if "logits" in output else output.last_hidden_state


def has_segments(case):
    return case.sizes.get("type_vocab_size", 2) > 1 and case.config.startswith(WITH_SEGMENTS)


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def assert_same_outputs(model, *references):
    """For random tokens."""
    tokens = torch.randint(5, VOCABULARY, (2, 19))
    for reference in references:
        assert_close(model(tokens), reference_output(reference, tokens))


def unread_bias(name):
    """Beside a head with a matrix of its own no code reads this bias: it is written as the decoder's."""
    return name.removesuffix("bias") + "decoder.bias"


class EncoderFamily(laws.FamilyLaws):
    @laws.over(all_rows, laws.is_first_or_sampled)
    def test_outputs_equal_reference(self, case, tmp_path):
        reference, tokens = make_encoder(tmp_path, case), torch.randint(5, VOCABULARY, (3, 20))
        model = load_model(tmp_path)
        with torch.no_grad():
            expected = reference_output(reference, tokens)
            assert_close(model(tokens), expected)
            if has_segments(case):
                segments = torch.randint(0, case.sizes.get("type_vocab_size", 2), (3, 20))
                with_segments = reference_output(reference, tokens, token_type_ids=segments)
                assert_close(model(tokens, None, segments), with_segments)
                assert not torch.allclose(with_segments, expected, atol=1e-3)
            if case.auto == BARE and "pooler_output" in reference(tokens):
                assert_close(model.get_submodule("pooler")(model(tokens)), reference(tokens).pooler_output)

    @laws.over(first_rows_of_heads)
    def test_padding_is_inert(self, case, tmp_path):
        reference, lengths = make_encoder(tmp_path, case), torch.tensor([12, 7, 2])
        model, tokens = load_model(tmp_path), torch.randint(5, VOCABULARY, (3, 12))
        counts_padding = case.config.startswith(POSITIONS_FROM_PADDING)
        first = case.sizes["pad_token_id"] + 1 if counts_padding else 0
        is_classifier = case.auto == CLASSES
        for side in ("left", "right"):
            mask, pos = laws.padding_mask(side, lengths, 12)
            selection = slice(None) if is_classifier else mask
            with torch.no_grad():
                output = model(tokens, pos.masked_fill(~mask, -1))[selection]
                unpadded_output = [model(tokens[row][mask[row]][None])[0] for row in range(3)]
                assert_close(
                    output, torch.stack(unpadded_output) if is_classifier else torch.cat(unpadded_output)
                )
                # most classifiers of the reference read the first column, padding or not
                averages = case.sizes.get("classifier_pooling") in ("mean", "late")
                if is_classifier and side == "left" and not averages:
                    continue
                positions = {"attention_mask": mask.long(), "position_ids": pos.clamp(min=0) + first}
                assert_close(output, reference_output(reference, tokens, **positions)[selection])

    @laws.over(all_rows, lambda row: row.id in ("bert-0", "deberta-v2-0", "modernbert-0"))
    def test_half_precision_export_keeps_every_tensor(self, case, tmp_path):
        name, dtype = laws.half_dtype(CASES_IN_ORDER.index(case))
        make_encoder(tmp_path / "checkpoint", case, dtype=dtype)
        _, exported_dir = laws.round_trip(tmp_path / "checkpoint", "--dtype", name)
        laws.assert_same_tensors(tmp_path / "checkpoint", exported_dir, duplicates=unread_bias)
        assert main(["import", str(exported_dir), str(tmp_path / "second_run")]) == 0

    @laws.over(first_rows_of_heads)
    def test_from_pretrained_opens_exported_run(self, case, tmp_path):
        checkpoint = tmp_path / "checkpoint"
        reference, tokens = make_encoder(checkpoint, case), torch.randint(5, VOCABULARY, (2, 15))
        _, exported_dir = laws.round_trip(checkpoint)
        laws.assert_same_tensors(checkpoint, exported_dir, duplicates=unread_bias)
        exported_model = laws.open_reference(case.auto, exported_dir)
        assert type(exported_model) is type(reference)
        with torch.no_grad():
            output, expected = (reference_output(model, tokens) for model in (exported_model, reference))
            torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)
        assert exported_model.config.id2label == reference.config.id2label
        first, second = (
            transformers.AutoTokenizer.from_pretrained(path) for path in (checkpoint, exported_dir)
        )
        for role in ("bos", "eos", "cls", "sep", "mask", "pad", "unk"):
            assert getattr(second, f"{role}_token") == getattr(first, f"{role}_token"), role
        for text in TEXTS:
            assert second(text)["input_ids"] == first(text)["input_ids"]
            assert dict(second(text, TEXTS[0])) == dict(first(text, TEXTS[0]))
        assert ("token_type_ids" in first("a")) == has_segments(case)

    @laws.over(masked_rows, lambda row: row.id in ("bert-0", "albert-0", "modernbert-mean"))
    def test_classifier_trained_from_masked_model_exports(self, case, tmp_path):
        make_encoder(tmp_path / "checkpoint", case)
        run, exported_dir = train_classifier(tmp_path)
        reference = laws.open_reference(CLASSES, exported_dir)
        pooling = {"ModernBertConfig": "cls", "EuroBertConfig": "late"}.get(case.config)
        expected_pooling = case.sizes.get("classifier_pooling", pooling)
        assert getattr(reference.config, "classifier_pooling", None) == expected_pooling
        check_classifier(run, reference, exported_dir)


def train_recipe(directory, *overrides, **recipe):
    recipe |= {"init_from": str(directory / "checkpoint"), "out": str(directory / "run")}
    (directory / "recipe.yaml").write_text(json.dumps(recipe))
    assert main(["train", str(directory / "recipe.yaml"), *overrides]) == 0
    return ph.load(directory / "run")


def train_classifier(directory, *overrides):
    lines = (f"{'merry' if i % 2 else 'sad'}\t{text}\n" for i, text in enumerate(TEXTS * 4))
    (directory / "text.tsv").write_text("".join(lines))
    data = {"root": str(directory), "train": "text.tsv", "valid": "text.tsv", "label": 0, "text": [1]}
    train = {"steps": 2, "max_tokens": 128}
    run = train_recipe(directory, *overrides, task="classification", data=data, train=train)
    assert main(["export", str(directory / "run"), str(directory / "exported")]) == 0
    return run, directory / "exported"


def check_classifier(run, reference, directory):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    for text in TEXTS:
        with torch.no_grad():
            probabilities = reference(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
        names = [reference.config.id2label[i] for i in range(len(probabilities))]
        expected = dict(zip(names, probabilities.tolist(), strict=True))
        assert run.classify([text])[0].probabilities == pytest.approx(expected, abs=1e-5)


CASES_IN_ORDER = [case for cases in CASES.values() for case in cases]
