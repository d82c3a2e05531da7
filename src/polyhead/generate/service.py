"""Texts in, texts out, for many at once: the engine as a program uses it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from inspect import signature
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from polyhead.errors import UserError, check_whole, show, unknown
from polyhead.generate.beam import Beaming, Wish
from polyhead.generate.decoder import Decoder
from polyhead.generate.drawing import Drawing, Drawn
from polyhead.generate.engine import Engine
from polyhead.generate.frame import Frame
from polyhead.generate.outcome import Stream
from polyhead.generate.request import Search
from polyhead.generate.sampling import Sampling
from polyhead.generate.search import beaming, beams_for, insisted, limit
from polyhead.generate.settings import ends_of, sampled, sampling_of, searched
from polyhead.generate.stream import TextStream
from polyhead.generation_section import DRAWS, GenerationConfig
from polyhead.registry import CACHE, Choice
from polyhead.text.form.form import Form, form_of
from polyhead.text.glossary import Entries, Glossary, Term, terms_of
from polyhead.text.listed import stop_texts
from polyhead.text.sides import Sides, between
from polyhead.text.tokenizer import Tokenizer

OPTIONS = frozenset(signature(Engine).parameters) - {"model", "max_len"}
ENGINE = {"cache", "batch_tokens"}  # settings of all requests, or of none


class Asked(NamedTuple):
    """A text that was read and a wish that was checked, ready for the engine."""

    prompt: list[int]  # what the model goes on from: a text, or the begin of a target
    search: Search
    source: list[int] | None
    before: list[int]  # tokens of the text that is gone on from
    n: int
    stops: list[str]
    ends: tuple[int, ...]  # tokens of which any ends it
    opening: tuple[int, ...] = ()
    trim: bool = False  # whether blanks at both ends are no part of the text
    speaker: Tokenizer | None = None  # by which tokens become text, if not by that of the engine


class TextEngine:
    """An engine with a tokenizer. ``submit`` texts at any time, from any thread; whoever waits drives it.

    ``run.engine()`` makes one. If not said otherwise, 256 sequences run at once, a step reads 512 known tokens at most, and
    keys and values lie in pages.
    """

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        config: GenerationConfig,
        frame: Frame | None,
        max_len: int,
        /,
        **options: Any,
    ) -> None:
        for name in sorted(set(options) - OPTIONS):
            raise unknown("option of the engine", name, OPTIONS)
        self.tokenizer, self.config, self.frame, self.max_len = tokenizer, config, frame, max_len
        options = {"rows": 256, "chunk": 512, "cache": config.cache} | options
        choice = options.pop("cache")
        if choice is None and any(one.keyed for one in model.cache_shape.members):
            choice = Choice("paged")
        self.engine = Engine(
            model, max_len=max_len, cache=CACHE.check(Choice.read(choice)) if choice else None, **options
        )
        # a rule is kept as long as a request follows it: settings come from outside, and there is no end of them
        self._drawing: WeakValueDictionary[tuple[Sampling, tuple[int, ...], Form | None], Drawing] = (
            WeakValueDictionary()
        )
        self._beaming: WeakValueDictionary[tuple[str, tuple[int, ...], Form | None], Beaming] = (
            WeakValueDictionary()
        )

    def submit(self, text: str | Sequence[int], **wishes: Any) -> Stream:
        """Go on from a text, or translate it, as ``read`` says."""
        return self.begin(self.read(text, **wishes))

    def tokens(self, text: str) -> list[int]:
        """What a language model reads before it goes on from a text; of a source, its own tokens alone."""
        (ids,) = self.tokenizer.encode([text if self.frame or text.strip() else ""])
        return ids if self.frame is None else self.frame.prompt(ids)

    def read(
        self,
        text: str | Sequence[int],
        *,
        n: int = 1,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        top: int = 0,
        turn_ends: Sequence[int] = (),
        trim: bool = False,
        speaker: Tokenizer | None = None,
        source_lang: str | None = None,
        target_lang: str | None = None,
        terms: Glossary | Entries | None = None,
        **changes: Any,
    ) -> Asked:
        """A wish, checked; nothing runs yet. ``changes`` are fields of GenerationConfig for this one request.

        A language model draws ``n`` sequences, or with ``beam_size`` finds the n likeliest. An encoder-decoder searches;
        with ``temperature`` (0 is the likeliest token), top_k, top_p or min_p it draws, and its words come one by one.
        With each token that is drawn the ``top`` likeliest are told. Any token of ``turn_ends`` ends it, if they are given, in
        place of the tokenizer's own end.
        ``trim`` takes the blanks at both ends away; of a language model's tokens ``speaker`` makes text, if it is given.
        A translation says what ``terms``, such as {"dog": "Hund"}, want of its words.
        The text may be given as tokens, such as ``tokens`` gives. A UserError says why the request cannot be served.
        """
        for name in sorted(ENGINE & set(changes)):
            raise UserError(f"{name} is a setting of the whole engine, not of one request")
        if "speculate" in changes:
            raise UserError("speculate has no effect in an engine: run.generate alone guesses tokens")
        check_whole("n", n, 1)
        check_whole("seed", seed, 0)
        stops, translates = stop_texts(stop), self.frame is None
        if translates:
            drawn = bool(DRAWS & set(changes))
            what = "drawn translations" if drawn else "translations"
        else:
            drawn = "beam_size" not in changes
            what = "drawn text" if drawn else "the likeliest texts"
        if top and (translates or not drawn):
            raise UserError(
                "the likeliest tokens of a place are given for sampled text of a language model only"
            )
        config = (sampled if drawn else searched)(self.config, changes, n, what)
        if not isinstance(text, Collection):
            raise UserError(f"a request is one text or its tokens, got {show(text)}")
        ids = self.tokens(text) if isinstance(text, str) else list(text)
        if any(isinstance(one, str) for one in ids):
            raise UserError("a request is one text, got several; submit each of them, and all run together")
        if terms and (drawn or not translates):
            raise UserError("terms have an effect on translations that beams search for alone")
        if translates:
            said = text if isinstance(text, str) else self.tokenizer.decode([ids])[0]
            (wanted,) = terms_of([said], terms, self.tokenizer.target) or [[]]
            sides = between(self.tokenizer, source_lang, target_lang)
            return self._translate(ids, config, n, seed, stops, drawn, sides, wanted)
        last = ends_of(config, self.tokenizer, *turn_ends)
        if drawn:
            rule = self._draw(config, last, speaker)
            search: Search = Drawn(rule, ids, config.max_new_tokens, n, seed, top=top)
        else:
            search = beams_for(
                self._beam(config, last, (), speaker),
                Wish(max(1, min(config.max_new_tokens, self.max_len - len(ids) + 1)), before=ids),
            )
        return Asked(ids, search, None, ids, n, stops, last, trim=trim, speaker=speaker)

    def begin(self, asked: Asked) -> Stream:
        """Give the engine what was read; a UserError says why it can never be served."""
        by = asked.speaker or self.tokenizer
        voices = [TextStream.of(by, asked.stops, asked.before, asked.trim) for _ in range(asked.n)]
        request = self.engine.submit(asked.prompt, asked.search, source=asked.source)
        return Stream(request, voices, asked.ends, asked.opening)

    def _translate(
        self,
        ids: list[int],
        config: GenerationConfig,
        n: int,
        seed: int,
        stops: list[str],
        drawn: bool,
        sides: Sides,
        terms: Sequence[Term],
    ) -> Asked:
        """Read a source and say its target."""
        source = sides.source(ids)
        if not ids:
            raise UserError("an empty text has no translation")
        if len(source) > self.max_len:
            raise UserError(
                f"the text has {len(source)} tokens; this model takes {self.max_len} at most: split it"
            )
        told = list(sides.opening) if sides.forced else []
        wanted = insisted(terms, sides, self.max_len)
        ends = ends_of(config, self.tokenizer.target, sides.end)
        least = len(told) + (wanted.size if wanted else 0) + 1
        most = min(self.max_len, max(limit(len(ids), config), least))
        if drawn:
            begin = [sides.start, *told]
            search = Drawn(self._draw(config, ends), begin, max(1, most - len(told)), n, seed)
            return Asked(begin, search, source, [], n, stops, ends)
        forbidden = [self.tokenizer.id_of(token) for token in config.forbidden]
        wish = Wish(most, told, len(told), [sides.start])
        beams = beams_for(self._beam(config, ends, forbidden), wish, wanted)
        return Asked([sides.start], beams, source, [], n, stops, ends, sides.opening)

    def _draw(self, config: GenerationConfig, ends: tuple[int, ...], by: Tokenizer | None = None) -> Drawing:
        """One rule for all requests with the same settings, for those are drawn together."""
        sampling = sampling_of(config, self.tokenizer.target.vocab_size)
        form = form_of(config.form, by or self.tokenizer, ends)
        return self._drawing.setdefault((sampling, ends, form), Drawing(sampling, *ends, form=form))

    def _beam(
        self,
        config: GenerationConfig,
        ends: tuple[int, ...],
        forbidden: Sequence[int] = (),
        by: Tokenizer | None = None,
    ) -> Beaming:
        form = form_of(config.form, by or self.tokenizer, ends)
        rule = beaming(config, ends[0], forbidden, form, ends[1:])
        return self._beaming.setdefault((config.model_dump_json(), ends, form), rule)
