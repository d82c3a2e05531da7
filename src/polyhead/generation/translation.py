"""Decode the translations of texts as tokens: encode, check the options, search or sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from polyhead.config.generation_config import SAMPLING_KEYS, GenerationConfig
from polyhead.core.blank_text import clear_blank
from polyhead.core.errors import UserError, check_int
from polyhead.generation.batch_decode import SamplingRequest, decode_sources
from polyhead.generation.constraints.terminology import TermEntries, Terminology, terminology_for
from polyhead.generation.constraints.unfinished_word import split_prefixes
from polyhead.generation.engine.interface import Decoder, Hypothesis
from polyhead.generation.settings import eos_ids_for, sampling_config, sampling_from_config, with_overrides
from polyhead.generation.shortlist.shortlist import Shortlist
from polyhead.tokenizers.input_validation import validate_texts
from polyhead.tokenizers.languages import with_languages
from polyhead.tokenizers.tokenizer import Tokenizer


def decode_translations(
    model: Decoder,
    tokenizer: Tokenizer,
    generation: GenerationConfig,
    texts: Sequence[str],
    max_len: int,
    shortlist: Shortlist | None,
    *,
    truncate: bool = False,
    source_lang: str | None = None,
    target_lang: str | None = None,
    prefix: Sequence[str] | None = None,
    terminology: Terminology | TermEntries | None = None,
    row_offset: int = 0,
    refusals: dict[int, str] | None = None,
    **overrides: Any,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield the best translations of the texts: (number, best first); ``overrides`` change ``generation``.

    With a setting of sampling among the overrides they are sampled, ``n_best`` per text, by a ``seed``; the
    samples of a text depend on its number, counted from ``row_offset``. Each translation begins with its text
    in ``prefix``, which may end inside of a word; ``terminology`` gives the required translations of words.
    Default languages are those of the tokenizer's files. A blank text has an empty translation, with
    ``refusals`` also one that cannot be translated, for the reason there. An invalid option is a UserError
    before anything is decoded.
    """
    sampling_request = None
    if SAMPLING_KEYS & set(overrides):
        n, seed = overrides.pop("n_best", 1), overrides.pop("seed", 0)
        for name, value, minimum in (("n_best", n, 1), ("seed", seed, 0), ("row_offset", row_offset, 0)):
            check_int(name, value, minimum)
        config = sampling_config(generation, overrides, n, "sampled translations")
        sampling_request = SamplingRequest(
            sampling_from_config(config, tokenizer.target_tokenizer.vocab_size), n, seed, row_offset
        )
        if terminology is not None:
            raise UserError("terminology is supported only for translations with beam search")
    else:
        config = with_overrides(generation, overrides, "translations")
    validate_texts([] if prefix is None else prefix, "prefix=")
    template = with_languages(tokenizer, source_lang, target_lang)
    max_tokens = max_len - len(template.opening_ids)
    splits = None if prefix is None else split_prefixes(tokenizer.target_tokenizer, prefix, max_tokens)
    return decode_sources(
        model,
        tokenizer.encode(list(map(clear_blank, texts))),
        config,
        seq2seq_template=template,
        max_len=max_len,
        truncate=truncate,
        prefix=None if splits is None else [split.ids for split in splits],
        last_words=None if splits is None else [split.word for split in splits],
        extra_eos_ids=eos_ids_for(config, tokenizer.target_tokenizer, template.eos_id)[1:],
        bad_token_ids=[tokenizer.token_to_id(token) for token in config.bad_words],
        shortlist=shortlist,
        terms=terminology_for(texts, terminology, tokenizer.target_tokenizer),
        sampling_request=sampling_request,
        refusals=refusals,
    )
