"""Translation of documents: their sentences are translated, their markup is placed by aligned words."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.config.recipe import has_guided_head
from polyhead.core.errors import UserError
from polyhead.data.documents.document import Document
from polyhead.generation.detokenizer import decode_complete_chars
from polyhead.introspect.word_alignment import AlignedPair, align_pairs
from polyhead.run.parts import RunParts
from polyhead.tokenizers.input_validation import has_lone_surrogate
from polyhead.tokenizers.languages import default_languages, with_languages

Languages = tuple[str | None, str | None]
"""Source and target; None: those of the run."""


def open_document(
    run: RunParts, text: str, format: str, source_lang: str | None, target_lang: str | None
) -> Document:
    """Read a document in the languages of a run; a UserError if it is not of its format."""
    if has_lone_surrogate(text):
        raise UserError("the document has half of a surrogate pair, which is not valid Unicode")
    data, defaults = run.recipe and run.recipe.data, default_languages(run.tokenizer)
    source = source_lang or (data and data.source_lang) or defaults["source"]
    return Document(text, format, source, target_lang or (data and data.target_lang) or defaults["target"])


def render_translations(
    run: RunParts, document: Document, tokens: Sequence[Sequence[int]], languages: Languages
) -> str:
    """The document with the tokens of its translated sentences, whose words the first model aligns."""
    outputs = decode_complete_chars(run.tokenizer.target_tokenizer, list(map(list, tokens)))
    rows = [i for i, has_markup in enumerate(document.has_markup) if has_markup and tokens[i]]
    sources, targets = [document.sentences[i] for i in rows], [tokens[i] for i in rows]
    pairs = align_outputs(run, sources, targets, languages) if rows else []
    alignments = {i: pair.alignment for i, pair in zip(rows, pairs, strict=True)}
    return document.render(
        [text or None for text in outputs], [alignments.get(i, []) for i in range(len(tokens))]
    )


def align_outputs(
    run: RunParts,
    sources: Sequence[str],
    targets: Sequence[Sequence[int]],
    languages: Languages,
    layer: int | None = None,
) -> list[AlignedPair]:
    """The words of sources and of the tokens of their outputs as the first model of a run aligns them."""
    (model, tokenizer), template = run.members[0], with_languages(run.tokenizer, *languages)
    return align_pairs(model, tokenizer, template, sources, targets, layer, has_guided_head(run.recipe))
