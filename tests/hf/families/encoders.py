"""Encoders of a family against the reference implementation: the same logits, vectors and files, labels and
roles.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.hf.conftest import TEXTS, VOCABULARY, make
from tests.hf.families.encoders_cases import BARE, CASES, CLASSES, MLM, MODERN, Case
from tests.hf.families.laws import FamilyLaws, over
from torch import Tensor

import polyhead as ph
from polyhead.cli import main
from polyhead.hf.load import load_model
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers

SEGMENTED = ("Bert", "Roberta", "Electra", "Albert", "Deberta", "Nomic", "Gte")
COUNTED = ("Roberta", "XLMRoberta", "Camembert", "MPNet")  # positions from that of padding on
POOLED = Case("ModernBertConfig", MLM, {**MODERN, "classifier_pooling": "mean"})


def every(names: Iterable[str]) -> list[Any]:
    return [pytest.param(case, id=f"{name}-{i}") for name in names for i, case in enumerate(CASES[name])]


def masked(names: Iterable[str]) -> list[Any]:
    """The rows that fill masks, of ModernBERT also with the mean as the vector of a text."""
    rows = [row for row in every(names) if row.values[0].auto == MLM]
    return rows + ([pytest.param(POOLED, id="modernbert-mean")] if "modernbert" in names else [])


def cls_and_sep(directory: Path, **more: Any) -> None:
    """A tokenizer as those of BERT: word pieces, [CLS] text [SEP], and a second text with [SEP] in segment
    1.
    """
    names = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=90, special_tokens=list(names.values()))
    )
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names, **more).save_pretrained(directory)


def s_and_s(directory: Path, **more: Any) -> None:
    """A tokenizer as that of RoBERTa: bytes, <s> text </s></s> second </s>, one segment."""
    roles = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=299, special_tokens=roles, initial_alphabet=alphabet)
    )
    inner.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "cls_token": "<s>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
    }
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, **names, unk_token="<unk>", mask_token="<mask>", **more
    ).save_pretrained(directory)


def pieces(directory: Path, **more: Any) -> None:
    """A tokenizer as that of ALBERT: unigram pieces in lower case between the roles of BERT, written another
    way.
    """
    roles = [(name, 0.0) for name in ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")]
    transformers.AlbertTokenizer(vocab=[*roles, *scored()], **more).save_pretrained(directory)


def deberta(directory: Path, **more: Any) -> None:
    """A tokenizer as that of DeBERTa-v3: the same in the case of the text, [MASK] the last of all."""
    roles = [(name, 0.0) for name in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")]
    vocab = [*roles, *scored(), ("[MASK]", 0.0)]
    transformers.DebertaV2Tokenizer(vocab=vocab, unk_id=3, **more).save_pretrained(directory)


def scored() -> list[tuple[str, float]]:
    """The words and letters of the texts, with how likely they are."""
    words = sorted({word for text in TEXTS for word in text.split()})
    return [
        *((f"▁{word}", -3 - 0.1 * i) for i, word in enumerate(words)),
        *((letter, -6 - 0.1 * i) for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz")),
    ]


def published(case: Case, directory: Path, **more: Any) -> Any:
    """The model of a case in its directory, with the tokenizer that its family has."""
    model = make(directory, case.config, auto=case.auto, **case.sizes, **more)
    inputs = ["input_ids", *["token_type_ids"] * has_segments(case), "attention_mask"]
    given = {"AlbertConfig": pieces, "DebertaV2Config": deberta}.get(case.config, cls_and_sep)
    own = s_and_s if case.config.startswith(COUNTED) else given
    own(directory, model_input_names=inputs)
    return model


def out(model: Any, *args: Any, **kwargs: Any) -> Tensor:
    """What theirs computes: logits, or the vectors of a bare model."""
    found = model(*args, **kwargs)
    return found.logits if "logits" in found else found.last_hidden_state


def has_segments(case: Case) -> bool:
    return case.sizes.get("type_vocab_size", 2) > 1 and case.config.startswith(SEGMENTED)


class EncoderFamily(FamilyLaws):
    @over(every)
    def test_numbers_are_those_of_the_reference(self, case: Case, tmp_path: Path) -> None:
        theirs, tokens = published(case, tmp_path), torch.randint(5, VOCABULARY, (3, 20))
        ours = load_model(tmp_path)
        with torch.no_grad():
            torch.testing.assert_close(ours(tokens), out(theirs, tokens), rtol=1e-5, atol=1e-5)
            if has_segments(case):
                segments = torch.randint(0, case.sizes.get("type_vocab_size", 2), (3, 20))
                wanted = out(theirs, tokens, token_type_ids=segments)
                torch.testing.assert_close(ours(tokens, None, segments), wanted, rtol=1e-5, atol=1e-5)
                assert not torch.allclose(wanted, out(theirs, tokens), atol=1e-3)
            if case.auto == BARE and "pooler_output" in theirs(tokens):
                pooled = ours.get_submodule("pooler")(ours(tokens))
                torch.testing.assert_close(pooled, theirs(tokens).pooler_output, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("side", ["left", "right"])
    @over(every)
    def test_padding_on_either_side_does_not_matter(self, case: Case, side: str, tmp_path: Path) -> None:
        theirs, lengths = published(case, tmp_path), torch.tensor([12, 7, 2])
        ours, place = load_model(tmp_path), torch.arange(12)
        real = place >= 12 - lengths[:, None] if side == "left" else place < lengths[:, None]
        tokens = torch.randint(5, VOCABULARY, (3, 12))
        pos = real.long().cumsum(1) - 1
        first = case.sizes["pad_token_id"] + 1 if case.config.startswith(COUNTED) else 0
        with torch.no_grad():
            found = ours(tokens, pos.masked_fill(~real, -1))
            alone = [ours(tokens[row][real[row]][None])[0] for row in range(3)]
            if case.auto == CLASSES:  # theirs reads the first place, whatever stands there
                torch.testing.assert_close(found, torch.stack(alone), rtol=1e-5, atol=1e-5)
                if side == "left" and case.sizes.get("classifier_pooling") not in ("mean", "late"):
                    return
            else:
                torch.testing.assert_close(found[real], torch.cat(alone), rtol=1e-5, atol=1e-5)
            wanted = out(theirs, tokens, attention_mask=real.long(), position_ids=pos.clamp(min=0) + first)
            if case.auto == CLASSES:
                torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
            else:
                torch.testing.assert_close(found[real], wanted[real], rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
    @over(every)
    def test_a_run_exports_to_the_very_same_tensors(self, case: Case, dtype: str, tmp_path: Path) -> None:
        name = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
        published(case, tmp_path / "a", dtype=name)
        assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
        assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--dtype", dtype]) == 0
        assert main(["import", str(tmp_path / "b"), str(tmp_path / "again")]) == 0
        before, after = (
            load_file(tmp_path / "a/model.safetensors"),
            load_file(tmp_path / "b/model.safetensors"),
        )
        assert before.keys() == after.keys()
        for key, own in before.items():
            # beside a head with a matrix of its own this bias is read by nobody, and written as the one that
            # is
            tensor = before.get(key.removesuffix("bias") + "decoder.bias", own)
            assert (tensor.dtype, tensor.shape) == (after[key].dtype, after[key].shape)
            assert torch.equal(tensor.view(torch.uint8), after[key].view(torch.uint8)), key

    @over(every)
    def test_from_pretrained_opens_what_was_exported(self, case: Case, tmp_path: Path) -> None:
        theirs, tokens = published(case, tmp_path / "a"), torch.randint(5, VOCABULARY, (2, 15))
        assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
        assert main(["export", str(tmp_path / "run"), str(tmp_path / "b")]) == 0
        again, info = getattr(transformers, case.auto).from_pretrained(
            tmp_path / "b", output_loading_info=True
        )
        assert not any(info.values()), info
        assert type(again) is type(theirs)
        with torch.no_grad():
            torch.testing.assert_close(out(again.eval(), tokens), out(theirs, tokens), rtol=1e-5, atol=1e-6)
        assert again.config.id2label == theirs.config.id2label
        before, after = (transformers.AutoTokenizer.from_pretrained(tmp_path / place) for place in "ab")
        for role in ("bos", "eos", "cls", "sep", "mask", "pad", "unk"):
            assert getattr(after, f"{role}_token") == getattr(before, f"{role}_token"), role
        for text in TEXTS:
            assert after(text)["input_ids"] == before(text)["input_ids"]
            assert dict(after(text, TEXTS[0])) == dict(before(text, TEXTS[0]))
        assert ("token_type_ids" in before("a")) == has_segments(case)

    @over(masked)
    def test_a_classifier_that_begins_with_masks_is_one_of_its_family(
        self, case: Case, tmp_path: Path
    ) -> None:
        published(case, tmp_path / "a")
        lines = (f"{'merry' if i % 2 else 'sad'}\t{text}\n" for i, text in enumerate(TEXTS * 4))
        (tmp_path / "text.tsv").write_text("".join(lines))
        data = {"root": str(tmp_path), "train": "text.tsv", "valid": "text.tsv", "label": 0, "text": [1]}
        recipe = {"task": "classification", "init_from": str(tmp_path / "a"), "data": data,
            "out": str(tmp_path / "run"),
                  "train": {"steps": 2, "max_tokens": 128}}  # fmt: skip
        (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
        assert main(["train", str(tmp_path / "recipe.yaml")]) == 0
        assert main(["export", str(tmp_path / "run"), str(tmp_path / "b")]) == 0
        theirs, info = getattr(transformers, CLASSES).from_pretrained(
            tmp_path / "b", output_loading_info=True
        )
        assert not any(info.values()), info
        pooled = {"ModernBertConfig": "cls", "EuroBertConfig": "late"}.get(case.config)
        assert getattr(theirs.config, "classifier_pooling", None) == case.sizes.get(
            "classifier_pooling", pooled
        )
        tokenizer, run = transformers.AutoTokenizer.from_pretrained(tmp_path / "b"), ph.load(tmp_path / "run")
        for text in TEXTS:
            with torch.no_grad():
                wanted = theirs.eval()(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
            found = run.classify([text])[0].probabilities
            named = {theirs.config.id2label[i]: p for i, p in enumerate(wanted.tolist())}
            assert found == pytest.approx(named, abs=1e-5)
