"""Texts to their translations as tokens: what is read, what is wished, and how it is searched for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from polyhead.errors import UserError, check_whole
from polyhead.generate.decoder import Decoder, Hypothesis
from polyhead.generate.search import Draws, search
from polyhead.generate.settings import changed, ends_of, sampled, sampling_of
from polyhead.generate.shortlist import Shortlist
from polyhead.generation_section import DRAWS, GenerationConfig
from polyhead.text.glossary import Entries, Glossary, terms_of
from polyhead.text.listed import check_texts
from polyhead.text.sides import between
from polyhead.text.tokenizer import Tokenizer


def translations(
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
    terms: Glossary | Entries | None = None,
    first: int = 0,
    **changes: Any,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The best translations of each text, as (its number, best first), as they are found; ``changes`` are of ``generation``.

    With temperature, top_k, top_p or min_p among them they are drawn, ``n_best`` of each text, by a ``seed``; a text draws by its
    number, counted from ``first``. A translation begins with its ``prefix`` and says what the ``terms`` of its text want.
    Languages that are not given are those of the tokenizer's files. A text of blanks alone has no translation. A wish that cannot
    be met is a UserError before anything is decoded.
    """
    draws = None
    if DRAWS & set(changes):
        n, seed = changes.pop("n_best", 1), changes.pop("seed", 0)
        for name, value, least in (("n_best", n, 1), ("seed", seed, 0), ("first", first, 0)):
            check_whole(name, value, least)
        config = sampled(generation, changes, n, "drawn translations")
        draws = Draws(sampling_of(config, tokenizer.target.vocab_size), n, seed, first)
        if terms is not None:
            raise UserError("terms have an effect on translations that beams search for alone")
    else:
        config = changed(generation, changes, "translations")
    check_texts([] if prefix is None else prefix, "prefix=")
    sides = between(tokenizer, source_lang, target_lang)
    return search(
        model,
        tokenizer.encode([text if text.strip() else "" for text in texts]),
        config,
        sides=sides,
        max_len=max_len,
        truncate=truncate,
        prefix=None if prefix is None else tokenizer.target.encode(prefix),
        also=ends_of(config, tokenizer.target, sides.end)[1:],
        forbidden=[tokenizer.id_of(token) for token in config.forbidden],
        shortlist=shortlist,
        terms=terms_of(texts, terms, tokenizer.target),
        draws=draws,
    )
