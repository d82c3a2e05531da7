"""Text interface of the engine: submit texts and get texts, many at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from inspect import signature
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from polyhead.chat.apply_template import encode_with_special_tokens
from polyhead.config.generation_config import SAMPLING_KEYS, GenerationConfig
from polyhead.core.blank_text import clear_blank
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, check_int, format_value, unknown_name_error
from polyhead.core.registry import CACHE
from polyhead.core.strict_kwargs import strict_kwargs, strict_methods
from polyhead.generation.batch_decode import (
    SamplingRequest,
    beam_state_for,
    beam_strategy,
    constraints_for,
    decode_sources,
    max_output_len,
)
from polyhead.generation.constraints.terminology import Term, TermEntries, Terminology, terminology_for
from polyhead.generation.constraints.unfinished_word import split_prefixes
from polyhead.generation.decoding.beam_search import BeamRequest, BeamSearchStrategy
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.detokenizer import Detokenizer
from polyhead.generation.engine.engine import Engine
from polyhead.generation.engine.request import Decoder, DecodingState, Hypothesis
from polyhead.generation.prompt_template import PromptTemplate
from polyhead.generation.settings import (
    beam_config,
    eos_ids_for,
    sampling_config,
    sampling_from_config,
    with_overrides,
)
from polyhead.generation.shortlist.shortlist import Shortlist
from polyhead.generation.speculative.verify import Proposer, RequestDrafter
from polyhead.generation.text_output import TextOutput
from polyhead.grammar.grammar_constraint import GrammarConstraint, constraint_for
from polyhead.tokenizers.input_validation import normalize_stop_strings, validate_texts
from polyhead.tokenizers.languages import with_languages
from polyhead.tokenizers.special_tokens import Seq2SeqTemplate
from polyhead.tokenizers.tokenizer import Tokenizer

_ENGINE_OPTIONS = frozenset(signature(Engine).parameters) - {"model", "max_len"}
_ENGINE_SETTINGS = {"cache", "batch_tokens", "speculative"}  # settings of the engine, not of a request


class PreparedRequest(NamedTuple):
    """An encoded text and a checked decoding state, ready for the engine."""

    prompt: list[int]  # tokens that the model continues: a text, or the start of a target
    state: DecodingState
    source: list[int] | None
    context_ids: list[int]  # tokens of the text that is continued
    n: int
    stop_strings: list[str]
    eos_ids: tuple[int, ...]  # any of them ends it
    opening_ids: tuple[int, ...] = ()
    trim: bool = False  # whether whitespace at both ends is dropped
    output_tokenizer: Tokenizer | None = None  # decodes the output; default: the tokenizer of the engine
    drafter: RequestDrafter | None = None


class EndTokens(NamedTuple):
    """The tokens that end an output."""

    eos_ids: tuple[int, ...]  # those of the model, which a grammar allows only at its end
    all_ids: tuple[int, ...]  # also those of the request, which may come anywhere


@strict_methods
class TextEngine:
    """An engine with a tokenizer. ``submit`` texts at any time, from any thread; a waiting thread runs it.

    ``run.engine()`` creates one. Defaults: 256 concurrent sequences, 512 prefill tokens per step, paged
    cache.
    """

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        config: GenerationConfig,
        prompt_template: PromptTemplate | None,
        max_len: int,
        /,
        proposer: Proposer | None = None,
        **options: Any,
    ) -> None:
        for name in sorted(set(options) - _ENGINE_OPTIONS):
            raise unknown_name_error("option of the engine", name, _ENGINE_OPTIONS)
        self.tokenizer = tokenizer
        self.config = config
        self.prompt_template = prompt_template
        self.max_len = max_len
        options = {"max_num_seqs": 256, "prefill_chunk": 512, "cache": config.cache} | options
        choice = options.pop("cache")
        if choice is None and any(one.kv_layers for one in model.cache_shape.models):
            choice = Choice("paged")
        self.engine = Engine(
            model,
            max_len=max_len,
            cache=CACHE.check(Choice.from_config(choice)) if choice else None,
            prefix_ids=tokenizer.prefix_ids if prompt_template else (),
            **options,
        )
        self.proposer = proposer  # source of draft tokens for texts of one sequence
        if proposer is not None:
            self.engine.check_speculation()
        # a strategy lives as long as its requests: settings come from outside, in unlimited number
        self._sampling_strategies: WeakValueDictionary[
            tuple[Sampling, tuple[int, ...], GrammarConstraint | None], SamplingStrategy
        ] = WeakValueDictionary()
        self._beam_strategies: WeakValueDictionary[
            tuple[str, tuple[int, ...], GrammarConstraint | None], BeamSearchStrategy
        ] = WeakValueDictionary()

    def submit(self, text: str | Sequence[int], **options: Any) -> TextOutput:
        """Continue a text, or translate it; arguments are those of ``prepare_request``."""
        return self.start_request(self.prepare_request(text, **options))

    def encode_prompt(self, text: str, parse_special: bool = False) -> list[int]:
        """The prompt of a language model for a text; the plain tokens of a source.

        With ``parse_special`` names of special tokens in the text are these tokens.
        """
        if parse_special and self.prompt_template is not None:
            return self.prompt_template.build_prompt(encode_with_special_tokens(text, self.tokenizer))
        (ids,) = self.tokenizer.encode([text if self.prompt_template else clear_blank(text)])
        return ids if self.prompt_template is None else self.prompt_template.build_prompt(ids)

    def prepare_request(
        self,
        text: str | Sequence[int],
        *,
        n: int = 1,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        top_logprobs: int = 0,
        turn_ends: Sequence[int] = (),
        stop_token_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        trim: bool = False,
        output_tokenizer: Tokenizer | None = None,
        source_lang: str | None = None,
        target_lang: str | None = None,
        terminology: Terminology | TermEntries | None = None,
        **overrides: Any,
    ) -> PreparedRequest:
        """Check a request; nothing runs yet. ``overrides`` are fields of GenerationConfig for this request.

        A language model samples ``n`` sequences, or finds the n most likely ones with ``beam_size``. An
        encoder-decoder searches; with ``temperature`` (0 is greedy) or another setting of sampling it
        samples, and its tokens are streamed. With each sampled token the ``top_logprobs`` most likely ones
        are reported. Any token of ``turn_ends``, if there are any, ends it in place of the tokenizer's end
        token. Tokens of ``stop_token_ids`` end it too, with ``ignore_eos`` only they; none of them is part of
        its text. ``trim`` drops the whitespace at both ends; ``output_tokenizer``, if there is one, decodes
        those of a language model. A translation contains the required translations of ``terminology``, such
        as {"dog": "Hund"}. ``text`` may also be tokens, such as those of ``encode_prompt``. A request that
        cannot be served is a UserError.
        """
        for name in sorted(_ENGINE_SETTINGS & set(overrides)):
            raise UserError(f"{name} is a setting of the engine, not of a request")
        check_int("n", n, 1)
        check_int("seed", seed, 0)
        check_int("top_logprobs", top_logprobs, 0)
        stops, translates = normalize_stop_strings(stop), self.prompt_template is None
        if translates:
            is_sampled = bool(SAMPLING_KEYS & set(overrides))
            output_kind = "sampled translations" if is_sampled else "translations"
        else:
            is_sampled = "beam_size" not in overrides
            output_kind = "sampled text" if is_sampled else "beam search"
        if top_logprobs and (translates or not is_sampled):
            raise UserError("top_logprobs are supported only for sampled text of a language model")
        config = (sampling_config if is_sampled else beam_config)(self.config, overrides, n, output_kind)
        if not isinstance(text, Collection):
            raise UserError(f"a request must be one text or its tokens, got {format_value(text)}")
        ids = self.encode_prompt(text) if isinstance(text, str) else list(text)
        if any(isinstance(item, str) for item in ids):
            raise UserError("a request must be one text, got several; submit each of them separately")
        if ignore_eos and not is_sampled:
            raise UserError("ignore_eos is supported only for sampled text")
        if ignore_eos and config.grammar is not None:
            raise UserError("ignore_eos cannot be combined with a grammar, after whose end a text ends")
        vocab_size = self.tokenizer.target_tokenizer.vocab_size
        for token in stop_token_ids:
            if type(token) is not int or not 0 <= token < vocab_size:
                raise UserError(
                    f"stop_token_ids has {format_value(token)}; the vocabulary has 0 to {vocab_size - 1}"
                )
        if is_sampled and config.min_new_tokens > config.max_new_tokens and not translates:
            raise UserError(
                f"min_new_tokens is {config.min_new_tokens}, more than the maximum of {config.max_new_tokens}"
            )
        if not translates and (source_lang is not None or target_lang is not None):
            raise UserError("source_lang and target_lang are supported only for translations")
        if terminology and (is_sampled or not translates):
            raise UserError("terminology is supported only for translations with beam search")
        if translates:
            source_text = text if isinstance(text, str) else self.tokenizer.decode([ids])[0]
            (terms,) = terminology_for([source_text], terminology, self.tokenizer.target_tokenizer) or [[]]
            template = with_languages(self.tokenizer, source_lang, target_lang)
            eos_ids = eos_ids_for(config, self.tokenizer.target_tokenizer, template.eos_id)
            eos_ids = () if ignore_eos else eos_ids
            ends = EndTokens(eos_ids, tuple(dict.fromkeys([*eos_ids, *stop_token_ids])))
            return self._prepare_translation(ids, config, n, seed, stops, is_sampled, template, terms, ends)
        eos_ids, drafter = eos_ids_for(config, self.tokenizer, *turn_ends), None
        eos_ids = () if ignore_eos else eos_ids
        ends = EndTokens(eos_ids, tuple(dict.fromkeys([*eos_ids, *stop_token_ids])))
        if is_sampled:
            strategy = self._sampling_strategy(config, ends, output_tokenizer)
            state: DecodingState = SampledSequences(
                strategy, ids, config.max_new_tokens, n, seed, top_logprobs=top_logprobs
            )
            if self.proposer is not None and n == 1:
                drafter = RequestDrafter(
                    self.proposer, ids, strategy.sampling, ends.all_ids, config.max_new_tokens
                )
        else:
            state = beam_state_for(
                self._beam_strategy(config, ends, (), output_tokenizer),
                BeamRequest(max(1, min(config.max_new_tokens, self.max_len - len(ids) + 1)), context_ids=ids),
            )
        return PreparedRequest(
            ids, state, None, ids, n, stops, ends.all_ids, (), trim, output_tokenizer, drafter
        )

    def start_request(self, prepared: PreparedRequest) -> TextOutput:
        """Submit a prepared request to the engine; one that can never be served is a UserError."""
        tokenizer = prepared.output_tokenizer or self.tokenizer.target_tokenizer
        detokenizers = [
            Detokenizer.for_tokenizer(tokenizer, prepared.stop_strings, prepared.context_ids, prepared.trim)
            for _ in range(prepared.n)
        ]
        request = self.engine.submit(
            prepared.prompt, prepared.state, source=prepared.source, drafter=prepared.drafter
        )
        unknown_id = self.tokenizer.target_tokenizer.unknown_id
        return TextOutput(request, detokenizers, prepared.eos_ids, prepared.opening_ids, unknown_id)

    def _prepare_translation(
        self,
        ids: list[int],
        config: GenerationConfig,
        n: int,
        seed: int,
        stop_strings: list[str],
        is_sampled: bool,
        seq2seq_template: Seq2SeqTemplate,
        terms: Sequence[Term],
        ends: EndTokens,
    ) -> PreparedRequest:
        """Prepare the translation of a source."""
        source = seq2seq_template.encoder_input(ids)
        if not ids:
            raise UserError("an empty text has no translation")
        if len(source) > self.max_len:
            raise UserError(
                f"the text has {len(source)} tokens; the model's maximum is {self.max_len}: split it"
            )
        opening_ids = list(seq2seq_template.opening_ids) if seq2seq_template.opening_forced else []
        constraints = constraints_for(terms, seq2seq_template, self.max_len)
        min_len = len(opening_ids) + (constraints.num_tokens if constraints else 0) + 1
        max_len = min(self.max_len, max(max_output_len(len(ids), config), min_len))
        if is_sampled:
            decoder_ids = [seq2seq_template.decoder_start_id, *opening_ids]
            state = SampledSequences(
                self._sampling_strategy(config, ends),
                decoder_ids,
                max(1, max_len - len(opening_ids)),
                n,
                seed,
            )
            return PreparedRequest(decoder_ids, state, source, [], n, stop_strings, ends.all_ids)
        bad_token_ids = [self.tokenizer.target_tokenizer.token_to_id(token) for token in config.bad_words]
        request = BeamRequest(max_len, opening_ids, len(opening_ids), [seq2seq_template.decoder_start_id])
        beam_state = beam_state_for(self._beam_strategy(config, ends, bad_token_ids), request, constraints)
        return PreparedRequest(
            [seq2seq_template.decoder_start_id],
            beam_state,
            source,
            [],
            n,
            stop_strings,
            ends.all_ids,
            seq2seq_template.opening_ids,
        )

    def _sampling_strategy(
        self, config: GenerationConfig, ends: EndTokens, tokenizer: Tokenizer | None = None
    ) -> SamplingStrategy:
        """One strategy for all requests with the same settings, because these are sampled together."""
        sampling = sampling_from_config(config, self.tokenizer.target_tokenizer.vocab_size)
        grammar = constraint_for(config.grammar, tokenizer or self.tokenizer.target_tokenizer, ends.eos_ids)
        eos_ids = ends.all_ids
        return self._sampling_strategies.setdefault(
            (sampling, eos_ids, grammar), SamplingStrategy(sampling, *eos_ids, grammar=grammar)
        )

    def _beam_strategy(
        self,
        config: GenerationConfig,
        ends: EndTokens,
        bad_token_ids: Sequence[int] = (),
        tokenizer: Tokenizer | None = None,
    ) -> BeamSearchStrategy:
        grammar = constraint_for(config.grammar, tokenizer or self.tokenizer.target_tokenizer, ends.eos_ids)
        eos_ids = ends.all_ids
        strategy = beam_strategy(config, eos_ids[0], bad_token_ids, grammar, eos_ids[1:])
        return self._beam_strategies.setdefault((config.model_dump_json(), eos_ids, grammar), strategy)


# Decode the translations of texts as tokens: encode, check the options, search or sample.
@strict_kwargs
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
    check_int("row_offset", row_offset, 0)
    if SAMPLING_KEYS & set(overrides):
        n, seed = overrides.pop("n_best", 1), overrides.pop("seed", 0)
        check_int("n_best", n, 1)
        check_int("seed", seed, 0)
        config = sampling_config(generation, overrides, n, "sampled translations")
        sampling_request = SamplingRequest(
            sampling_from_config(config, tokenizer.target_tokenizer.vocab_size), n, seed, row_offset
        )
        if terminology is not None:
            raise UserError("terminology is supported only for translations with beam search")
    else:
        config = with_overrides(generation, overrides, "translations")
    validate_texts([] if prefix is None else prefix, "prefix=")
    if not isinstance(truncate, bool):
        raise UserError(f"truncate is {format_value(truncate)}; expected true or false")
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
        bad_token_ids=[tokenizer.target_tokenizer.token_to_id(token) for token in config.bad_words],
        shortlist=shortlist,
        terms=terminology_for(texts, terminology, tokenizer.target_tokenizer),
        sampling_request=sampling_request,
        refusals=refusals,
    )
