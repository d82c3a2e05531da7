"""A run, finished or not: model, tokenizer and recipe, with everything that they can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from torch import Tensor

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, format_value
from polyhead.core.i18n import tr
from polyhead.core.registry import SPECULATIVE
from polyhead.core.strict_kwargs import strict_methods
from polyhead.data.readers.labeled import LabeledExample
from polyhead.data.readers.plain_text import TextFiles
from polyhead.evaluate.answering import ContextAnswer, answer_questions
from polyhead.evaluate.classify import (
    ClassPrediction,
    ClassPredictions,
    TextsOrPairs,
    check_text_arity,
    classify,
)
from polyhead.evaluate.embed import (
    Embeddings,
    Layers,
    TokenEmbeddings,
    embed_texts,
    embed_tokens,
    token_limit,
)
from polyhead.evaluate.fill_mask import MaskPrediction, fill_mask, find_unfillable_texts
from polyhead.evaluate.metrics import (
    N_RESAMPLES,
    Evaluation,
    References,
    check_metrics,
    check_same_length,
    evaluate_translations,
)
from polyhead.evaluate.perplexity import Perplexity, text_perplexity
from polyhead.evaluate.scoring import (
    SCORE_BATCH_TOKENS,
    PairScore,
    find_overlong_inputs,
    perplexity_of_scores,
    score_inputs,
)
from polyhead.evaluate.tagging import LabeledSpan, tag_texts
from polyhead.generation.batch_decode import restore_order
from polyhead.generation.chat import ChatSession, parse_conversation
from polyhead.generation.detokenizer import decode_complete_chars
from polyhead.generation.engine.request import Hypothesis
from polyhead.generation.settings import beam_config, sampling_config, with_overrides
from polyhead.generation.shortlist.shortlist import Shortlist, load_shortlist
from polyhead.generation.speculative.verify import Proposer
from polyhead.generation.text_engine import TextEngine, decode_translations
from polyhead.generation.text_generation import (
    TextDelta,
    beam_search_prompts,
    beam_search_texts,
    collect_texts,
    generate_texts,
)
from polyhead.introspect.attention_map import AttentionMap
from polyhead.introspect.compute_attention import (
    BeamAttention,
    build_attention_maps,
    build_beam_attention,
    cross_attention_weights,
)
from polyhead.introspect.word_alignment import AlignedPair
from polyhead.run.parts import RunParts
from polyhead.run.translate_document import align_outputs, open_document, render_translations
from polyhead.tokenizers.input_validation import (
    normalize_stop_strings,
    validate_list,
    validate_text,
    validate_texts_or_ids,
)
from polyhead.tokenizers.languages import with_languages


@strict_methods
class Run(RunParts):
    """A trained model of any kind with its tokenizer: text in, text out. Made by ``ph.load(directory)``."""

    @overload
    def generate(self, prompts: Sequence[str], *, n: None = None, **changes: Any) -> list[str]: ...
    @overload
    def generate(self, prompts: Sequence[str], *, n: int, **changes: Any) -> list[list[str]]: ...
    def generate(
        self, prompts: Sequence[str], *, n: int | None = None, **changes: Any
    ) -> list[str] | list[list[str]]:
        """Generate the continuation of each prompt, or ``n`` continuations of each.

        ``seed`` makes it reproducible, ``stop`` strings end it; other ``changes`` are fields of
        GenerationConfig, such as temperature=0.8. With beam_size=5 nothing is sampled: it returns the most
        likely texts, fewer than ``n`` if a grammar allows no more.
        """
        self._require_kind("decoder", generate=(prompts,))
        num_texts = 1 if n is None else n
        texts = collect_texts(self.stream(prompts, n=num_texts, **changes), len(prompts), num_texts)
        return ["".join(samples) for samples in texts] if n is None else texts

    def stream(
        self,
        prompts: Sequence[str],
        *,
        n: int = 1,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        refusals: dict[int, str] | None = None,
        unknown_rows: set[int] | None = None,
        **changes: Any,
    ) -> Iterator[TextDelta]:
        """As ``generate``, streamed: never half a character, never the beginning of a stop string.

        A prompt that cannot be continued is a UserError; with ``refusals`` the reason is there, by its index.
        ``unknown_rows`` gets the numbers of the outputs with an unknown token.
        """
        model = self._require_kind("decoder", stream=(prompts,))
        options: dict[str, Any] = {"max_len": self.config.max_len, "stop": normalize_stop_strings(stop)}
        options |= {"refusals": refusals, "unknown_rows": unknown_rows}
        if "beam_size" in changes:
            changes |= {} if seed is None else {"seed": seed}
            config = beam_config(self.generation, changes, n, "beam search")
            return beam_search_texts(model, self.tokenizer, config, self._encode_prompts(prompts), **options)
        config = sampling_config(self.generation, changes, n, "sampled text")
        prompt_ids = self._encode_prompts(prompts)
        options |= {"n": n, "seed": 0 if seed is None else seed}
        options["proposer"] = self._proposer(config.speculative)
        return generate_texts(model, self.tokenizer, config, prompt_ids, **options)

    def engine(self, **options: Any) -> TextEngine:
        """Create an engine for requests at any time: ``run.engine(cache="paged").submit("Once", n=4)``.

        ``options`` are those of ``polyhead.generation.engine.engine.Engine``; ``shortlist=True`` uses that of
        the run, ``speculative="lookup"`` speculative decoding, by default as the run's generation settings.
        """
        model = self._require_kind("encoder-decoder", "decoder")
        template = self.prompt_template if self.kind == "decoder" else None
        options["shortlist"] = self._load_shortlist(options.get("shortlist"))
        speculative = options.pop("speculative", None)
        if self.kind == "decoder":
            choice = Choice.from_config(speculative) if speculative else self.generation.speculative
            options["proposer"] = self._proposer(choice)
        elif speculative:
            raise UserError("speculative: only language models support speculative decoding")
        return TextEngine(model, self.tokenizer, self.generation, template, self.config.max_len, **options)

    def chat(self, messages: Sequence[Any], **changes: Any) -> str:
        """The assistant's answer to messages such as {"role": "user", "content": "Hello"}.

        ``chat`` names the chat format if the run has none, ``tools`` the functions that may be called; the
        rest is as in ``generate``.
        """
        return "".join(self.stream_chat(messages, **changes))

    def stream_chat(self, messages: Sequence[Any], *, chat: Any = None, **changes: Any) -> Iterator[str]:
        """As ``chat``, streamed."""
        return self.chat_session(chat).answer(parse_conversation(messages), **changes)

    def chat_session(self, chat: Any = None, **options: Any) -> ChatSession:
        """A chat session that does not read earlier turns again. ``options`` are those of the engine."""
        self._require_kind("decoder")
        return ChatSession(self.engine(**options), Choice.from_config(chat) if chat else self.generation.chat)

    def _proposer(self, choice: Choice | None) -> Proposer | None:
        """The source of draft tokens; cached, because it may be a loaded model."""
        if choice is not None and (self._cached_proposer is None or self._cached_proposer[0] != choice):
            self._cached_proposer = choice, SPECULATIVE.build(choice, self)
        return None if choice is None or self._cached_proposer is None else self._cached_proposer[1]

    def _load_shortlist(self, enabled: bool | None) -> Shortlist | None:
        is_ensemble = len(self.members) > 1
        return load_shortlist(self.get_shortlist, enabled, self.kind, is_ensemble, self.directory)

    def _encode_prompts(self, prompts: Sequence[str]) -> list[list[int]]:
        """The prompts of a language model as tokens."""
        return [self.prompt_template.build_prompt(ids) for ids in self.tokenizer.encode(prompts)]

    def find_long_prompts(self, prompts: Sequence[str]) -> dict[int, int]:
        """Number of tokens of each prompt that is too long for ``generate``, by its index."""
        self._require_kind("decoder", find_long_prompts=(prompts,))
        rows = enumerate(self._encode_prompts(prompts))
        return {i: len(ids) for i, ids in rows if len(ids) > self.config.max_len}

    def hypotheses(
        self,
        texts: Sequence[str],
        *,
        shortlist: bool = False,
        progress: Callable[[int], None] | None = None,
        **changes: Any,
    ) -> list[list[Hypothesis]]:
        """The n best outputs of each text, or continuations of each prompt, as tokens with scores.

        ``changes`` are fields of GenerationConfig, for translations also the other arguments of
        ``translate``. With ``shortlist`` only tokens that the source suggests are output.
        """
        model = self._require_kind("encoder-decoder", "decoder", hypotheses=(texts,))
        max_len = self.config.max_len
        shortlist_tokens = self._load_shortlist(shortlist)
        if self.config.kind == "decoder" and changes.get("prefix") is None:
            changes.pop("prefix", None)
            config = with_overrides(self.generation, changes, "beam search")
            results = beam_search_prompts(model, self.tokenizer, config, self._encode_prompts(texts), max_len)
        else:
            self._require_kind("encoder-decoder")
            results = decode_translations(
                model, self.tokenizer, self.generation, texts, max_len, shortlist_tokens, **changes
            )
        return restore_order(results, len(texts), progress)

    @overload
    def translate(self, texts: Sequence[str], *, n_best: None = None, **changes: Any) -> list[str]: ...
    @overload
    def translate(self, texts: Sequence[str], *, n_best: int, **changes: Any) -> list[list[str]]: ...
    def translate(
        self, texts: Sequence[str], *, n_best: int | None = None, **changes: Any
    ) -> list[str] | list[list[str]]:
        """The best translation of each text, or the ``n_best`` of each if that is given here.

        ``changes`` are fields of GenerationConfig, such as beam_size=5 and length_penalty=1.0; ``prefix``,
        the forced prefix of each translation; ``terminology``, the required translations of words, as {"dog":
        ["Hund", "Hündin"]}; languages of a multilingual model, source_lang="en" and target_lang="de". With
        temperature=1.0, top_k, top_p or min_p they are sampled, by a ``seed``.
        """
        self._require_kind("encoder-decoder", translate=(texts,))
        results = self.hypotheses(texts, n_best=1 if n_best is None else n_best, **changes)
        tokenizer = self.tokenizer.target_tokenizer
        if n_best is None:
            return decode_complete_chars(tokenizer, [best[0].tokens for best in results])
        return [decode_complete_chars(tokenizer, [h.tokens for h in best]) for best in results]

    def translate_document(
        self, text: str, format: str = "text", *, refusals: dict[int, str] | None = None, **changes: Any
    ) -> str:
        """A document with translated sentences; ``format`` is "text", "html", "markdown", "srt" or "xliff".

        What is not translated stays to the byte: markup, code, addresses, white space, times. Inline markup
        is around the words that are aligned with its own. A sentence that is too long for the model, or that
        a constraint leaves without output, stays too; ``refusals`` gets the reason, by its index.
        ``changes`` are those of ``translate``, without prefix.
        """
        self._require_kind("encoder-decoder")
        validate_text("text", text)
        for name in ("prefix", "n_best"):
            if changes.get(name) is not None:
                raise UserError(
                    f"{name} is {format_value(changes[name])}: it is for lists of texts, not documents"
                )
        languages = changes.get("source_lang"), changes.get("target_lang")
        document = open_document(self, text, format, *languages)
        refusals = {} if refusals is None else refusals
        sentences, template = list(document.sentences), with_languages(self.tokenizer, *languages)
        limit = self.config.max_len - len(template.encoder_input(()))
        for i, ids in enumerate([] if changes.get("truncate") else self.tokenizer.encode(sentences)):
            if len(ids) > limit:
                message = "{count:,} tokens, the model's maximum is {most:,}"
                refusals[i], sentences[i] = tr(message, count=len(ids), most=limit), ""
        rows = self.hypotheses(sentences, n_best=1, refusals=refusals, **changes)
        tokens = [best[0].tokens if best and i not in refusals else [] for i, best in enumerate(rows)]
        return render_translations(self, document, tokens, languages)

    def align_pairs(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        layer: int | None = None,
        source_lang: str | None = None,
        target_lang: str | None = None,
    ) -> list[AlignedPair]:
        """The log-probability of each token of translations, and which words belong together.

        Words are aligned by the attention of a ``layer`` of the decoder, from 0; default: of all layers, or
        of the head that guided alignment taught.
        """
        self._require_kind("encoder-decoder", align_pairs=(sources, targets))
        self._require_single("run.align_pairs is")
        rows = self.tokenizer.target_tokenizer.encode(targets)
        return align_outputs(self, sources, rows, (source_lang, target_lang), layer)

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str] | None = None,
        batch_tokens: int = SCORE_BATCH_TOKENS,
    ) -> list[PairScore]:
        """log p(target | source) of each pair, or log p(text) of single texts; ``batch_tokens`` per side."""
        model = self._require_kind("encoder-decoder", "decoder", score=(sources, targets))
        return score_inputs(model, self.tokenizer, self.prompt_template, sources, targets, batch_tokens)

    def find_overlong(self, sources: Sequence[str], targets: Sequence[str] | None = None) -> dict[int, int]:
        """Number of tokens of each text or pair that is too long for ``score``, by its index."""
        model = self._require_kind("encoder-decoder", "decoder", find_overlong=(sources, targets))
        return find_overlong_inputs(model, self.tokenizer, self.prompt_template, sources, targets)

    def perplexity(self, sources: Sequence[str], targets: Sequence[str] | None = None) -> float:
        """exp of the mean negative log-likelihood per token of targets, or of single texts, ends included."""
        self._require_kind("encoder-decoder", "decoder", perplexity=(sources, targets))
        return perplexity_of_scores(self.score(sources, targets))

    def classify(self, texts: TextsOrPairs, batch_tokens: int = 4096) -> list[ClassPrediction]:
        """The class of each text or pair (a, b) and the probabilities of all classes; a reranker's score."""
        return self.predict_classes(texts, batch_tokens).predictions

    def predict_classes(self, texts: TextsOrPairs, batch_tokens: int = 4096) -> ClassPredictions:
        """As ``classify``, with the number of truncated texts and the token limit."""
        self._require_kind("classifier")
        check_text_arity(texts, len(self.recipe.data.text) if self.recipe else 0)
        return classify(self.members, texts, self.generation, batch_tokens)

    def tag(self, texts: Sequence[str], batch_tokens: int = 4096) -> list[list[LabeledSpan]]:
        """The labeled spans of each text: text, label, start and end in characters, and score."""
        model = self._require_kind("token classifier")
        self._require_single("tagging is")
        return tag_texts(model, self.tokenizer, texts, self.generation, batch_tokens)

    def answer(self, question: str, context: str) -> ContextAnswer:
        """The answer to a question in a context: answer, start and end in characters, and score."""
        return self.answer_all([(question, context)])[0]

    def answer_all(self, pairs: Sequence[tuple[str, str]], batch_tokens: int = 4096) -> list[ContextAnswer]:
        """The answer to each pair of a question and a context, of any length."""
        model = self._require_kind("question answerer")
        self._require_single("answering is")
        validate_list(pairs, "run.answer_all")
        check_text_arity(pairs, 2)
        examples = [LabeledExample(0, pair, "", "") for pair in pairs]
        limit = token_limit(self.generation, model.config.max_len)
        outputs = answer_questions(model, self.tokenizer, examples, limit, batch_tokens)
        return [answer for answer, _ in outputs]

    def fill_mask(self, texts: Sequence[str], top_k: int = 5) -> list[list[list[MaskPrediction]]]:
        """The most likely tokens for each mask of each text, <mask> or [MASK], with their probabilities."""
        return fill_mask(self._require_kind("encoder", fill_mask=(texts,)), self.tokenizer, texts, top_k)

    def find_unfillable(self, texts: Sequence[str]) -> dict[int, str]:
        """Why ``fill_mask`` would refuse texts, by index: without a mask, or too long."""
        model = self._require_kind("encoder", find_unfillable=(texts,))
        return find_unfillable_texts(model, self.tokenizer, texts)

    def _require_embedder(self) -> Any:
        """Return the model if it can embed texts, which an encoder-decoder cannot."""
        self._require_single("embeddings are")
        return self._require_kind("encoder" if self.kind == "encoder-decoder" else self.kind)

    def embed(
        self, texts: Sequence[str | Sequence[int]], *, layers: Layers | None = None, **changes: Any
    ) -> Tensor:
        """One vector per text or token list: (N, C). ``pooling``: "mean", "first", "last", "max" or "own".

        With ``layers``, numbers or "all", one of each layer: (N, L, C); 0 is the embeddings. ``dimensions``
        keeps only the first ones of each vector.
        """
        return self.compute_embeddings(texts, layers=layers, **changes).vectors

    def compute_embeddings(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        layers: Layers | None = None,
        dimensions: int | None = None,
        **changes: Any,
    ) -> Embeddings:
        """As ``embed``, with the number of truncated texts."""
        model = self._require_embedder()
        args = self.tokenizer, texts, with_overrides(self.generation, changes, "text embeddings")
        return embed_texts(model, *args, self.embedding_template, layers=layers, dimensions=dimensions)

    def embed_tokens(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        layers: Layers | None = None,
        dimensions: int | None = None,
        **changes: Any,
    ) -> list[TokenEmbeddings]:
        """A vector per token of each text, special tokens included: (T, C), or with ``layers`` (L, T, C).

        ``normalize`` is false unless it is given here.
        """
        model = self._require_embedder()
        validate_texts_or_ids(texts, "run.embed_tokens", self.tokenizer.vocab_size)
        config = with_overrides(self.generation, {"normalize": False} | changes, "token embeddings")
        args = self.tokenizer, texts, config, self.embedding_template
        return embed_tokens(model, *args, layers=layers, dimensions=dimensions)

    def measure_perplexity(self, text: TextFiles) -> Perplexity:
        """Perplexity of a language model on files of ``polyhead.data.readers.plain_text.open_text``."""
        width = min(self.recipe.data.max_len if self.recipe else self.config.max_len, self.config.max_len)
        return text_perplexity(
            self._require_kind("decoder"), self.tokenizer, text, width, self.generation.batch_tokens
        )

    def cross_attention(self, source: str, target: str | None = None) -> tuple[list[str], list[str], Tensor]:
        """Source tokens, target tokens, cross-attention (layers, heads, T, S); row t predicts target t."""
        self._require_kind("encoder-decoder")
        return cross_attention_weights(self.attention_maps(source, target))

    def attention_maps(self, source: str, target: str | None = None) -> dict[str, AttentionMap]:
        """Attention maps of a pair ("cross", "encoder", "decoder"); the default target is the run's output.

        An encoder or a decoder alone has one map, "self", and no target.
        """
        self._require_single("attention is")
        validate_text("source", source)
        validate_text("target", "" if target is None else target)
        args = self.model, self.tokenizer, self.prompt_template, source, target
        return build_attention_maps(*args, lambda: self.hypotheses([source])[0][0].tokens)

    def beam_attention(
        self, text: str, *, source_lang: str | None = None, target_lang: str | None = None, **changes: Any
    ) -> list[BeamAttention]:
        """The hypotheses of beam search, best first, each with its attention maps on its own tokens.

        The maps are those of ``attention_maps``; a language model has "self", over the prompt and the
        continuation. ``changes`` are those of ``hypotheses``, such as beam_size=4 and n_best=4.
        """
        self._require_single("attention is")
        self._require_kind("encoder-decoder", "decoder")
        validate_text("text", text)
        languages = {"source_lang": source_lang, "target_lang": target_lang}
        changes |= {name: language for name, language in languages.items() if language is not None}
        (hypotheses,) = self.hypotheses([text], **changes)
        is_translation = self.kind == "encoder-decoder"
        template = with_languages(self.tokenizer, source_lang, target_lang) if is_translation else None
        args = self.model, self.tokenizer, self.prompt_template, text, hypotheses
        return build_beam_attention(*args, template)

    def evaluate(
        self,
        sources: Sequence[str],
        references: References,
        lang: str = "",
        *,
        metrics: Sequence[str] = (),
        **changes: Any,
    ) -> Evaluation:
        """Scores of detokenised free-running output, and the outputs: the best of each source.

        ``references`` has a text for each source, or a list of texts if there are several references;
        ``metrics`` are names such as ["ter", "rouge-l", "comet:PATH"] (default: BLEU, lowercased BLEU and
        chrF). The interval of a score is ``score.value ± score.margin``, of 1,000 bootstrap resamples;
        ``compare_scores`` in ``evaluate/metrics.py`` compares two runs by them.
        """
        self._require_kind("encoder-decoder")
        check_same_length(sources, references)
        check_metrics(metrics)
        outputs = self.translate(sources, truncate=True, **changes)
        return evaluate_translations(outputs, references, lang, metrics, sources, N_RESAMPLES)
