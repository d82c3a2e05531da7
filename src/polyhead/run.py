"""A finished (or unfinished) run: model, tokenizer and recipe together, ready to be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from polyhead.analysis.classes import Answers, Classified, Texts, check_learned, classify
from polyhead.analysis.filling import Fill, fill_mask
from polyhead.analysis.heat_map import AttentionMap
from polyhead.analysis.metrics import Evaluation, check_same_length, evaluated
from polyhead.analysis.perplexity import Perplexity, of_text
from polyhead.analysis.scoring import BATCH_TOKENS, PairScore, perplexity, scored
from polyhead.analysis.token_maps import cross, display, maps
from polyhead.analysis.vectors import Embedded, embed
from polyhead.calls import told_calls
from polyhead.config import ModelConfig
from polyhead.data.text import Text
from polyhead.errors import UserError
from polyhead.fast.pack import is_packed
from polyhead.files import replace_file
from polyhead.generate.chat import Chat, conversation
from polyhead.generate.decoder import Hypothesis
from polyhead.generate.frame import Frame, about_vectors, frame
from polyhead.generate.search import in_order
from polyhead.generate.service import TextEngine
from polyhead.generate.settings import changed, sampled, searched
from polyhead.generate.shortlist import Shortlist, granted
from polyhead.generate.speculative import Proposer
from polyhead.generate.stream import decode_whole
from polyhead.generate.text import Said, continuations, gathered, likeliest, likeliest_continuations
from polyhead.generate.translation import translations
from polyhead.generation_section import GenerationConfig
from polyhead.models import Model
from polyhead.models.build import check_able, kind_of
from polyhead.recipe import Recipe
from polyhead.registry import SPECULATE, Choice
from polyhead.run_files import describe, write_weights
from polyhead.text.listed import check_each, stop_texts
from polyhead.text.tokenizer import Tokenizer


@told_calls
class Run:
    """Text in, text out, whatever the model is. ``ph.load(directory)`` makes one."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer, generation: GenerationConfig, recipe: Recipe | None = None
    ) -> None:
        if tokenizer.vocab_size > model.config.vocab_size:
            raise UserError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, the model only {model.config.vocab_size}: they are not of the same run"
            )
        self.model, self.tokenizer, self.generation, self.recipe = model.eval(), tokenizer, generation, recipe
        self.members: list[tuple[Any, Tokenizer]] = [(model, tokenizer)]
        self.shortlist: Callable[[], Shortlist | None] = lambda: None  # read when it is wanted
        self.family: str | None = None  # the published one that it came from, as which it is exported
        self.directory: Path | None = None  # that it was loaded from
        self._guessing: tuple[Choice, Proposer] | None = None

    def __repr__(self) -> str:
        several = f"{len(self.members)} together, " if len(self.members) > 1 else ""
        return f"Run({several}{self.config.kind}, {self.config.n_layers} layers of {self.config.d_model}, {self.tokenizer.vocab_size:,} tokens)"

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def kind(self) -> str:
        """As its config says, and "classifier" for an encoder that tells classes."""
        return kind_of(self.config)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    def _need(self, *kinds: str, **given: tuple[object, ...]) -> Any:
        """The model, if it is of one of these kinds, for a verb that is ``given`` lists of texts; a UserError says what this run can do instead."""
        check_able(self.config, kinds)
        for verb, lists in given.items():
            check_each(lists, f"run.{verb}")
        return self.model

    def _alone(self, what: str) -> None:
        if len(self.members) > 1:
            raise UserError(f"{what} of one run, and these are {len(self.members)} together: open one")

    @overload
    def generate(self, prompts: Sequence[str], *, n: None = None, **changes: Any) -> list[str]: ...
    @overload
    def generate(self, prompts: Sequence[str], *, n: int, **changes: Any) -> list[list[str]]: ...
    def generate(
        self, prompts: Sequence[str], *, n: int | None = None, **changes: Any
    ) -> list[str] | list[list[str]]:
        """What a language model says after each prompt, or ``n`` such continuations of each.

        ``seed`` makes it repeatable, ``stop`` strings end it; other ``changes`` are fields of GenerationConfig, such as
        temperature=0.8. With beam_size=5 nothing is drawn: the likeliest texts, fewer than ``n`` if a form allows no more.
        """
        self._need("decoder", generate=(prompts,))
        each = 1 if n is None else n
        found = gathered(self.stream(prompts, n=each, **changes), len(prompts), each)
        return ["".join(own) for own in found] if n is None else found

    def stream(
        self,
        prompts: Sequence[str],
        *,
        n: int = 1,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        **changes: Any,
    ) -> Iterator[Said]:
        """As ``generate``, piece by piece: never half a character, never the beginning of a stop string."""
        model, most, stop = self._need("decoder", stream=(prompts,)), self.config.max_len, stop_texts(stop)
        if "beam_size" not in changes:
            config = sampled(self.generation, changes, n, "drawn text")
            read, guesses, seed = self._read(prompts), self._proposer(config.speculate), seed or 0
            rest: dict[str, Any] = {"max_len": most, "n": n, "seed": seed, "stop": stop, "proposer": guesses}
            return continuations(model, self.tokenizer, config, read, **rest)
        changes |= {} if seed is None else {"seed": seed}
        config, read = searched(self.generation, changes, n, "the likeliest texts"), self._read(prompts)
        return likeliest_continuations(model, self.tokenizer, config, read, max_len=most, stop=stop)

    def engine(self, **options: Any) -> TextEngine:
        """For many requests, each at its own time: ``run.engine(cache="paged").submit("Once", n=4)``.

        ``options`` are those of ``polyhead.generate.engine.Engine``; ``shortlist=True`` takes that of the run.
        """
        model = self._need("encoder-decoder", "decoder")
        about = self._frame if self.kind == "decoder" else None
        options["shortlist"] = granted(self.shortlist, options.get("shortlist"), len(self.members) > 1)
        return TextEngine(model, self.tokenizer, self.generation, about, self.config.max_len, **options)

    def chat(self, messages: Sequence[Any], **changes: Any) -> str:
        """What the assistant says after messages such as {"role": "user", "content": "Hello"}.

        ``chat`` names the format if the run does not say it, ``tools`` what may be called; the rest is as in ``generate``.
        """
        return "".join(self.stream_chat(messages, **changes))

    def stream_chat(self, messages: Sequence[Any], *, chat: Any = None, **changes: Any) -> Iterator[str]:
        """As ``chat``, piece by piece."""
        return self.talker(chat).answer(conversation(messages), **changes)

    def talker(self, chat: Any = None, **options: Any) -> Chat:
        """For conversations that go on: what was read is not read again. ``options`` are those of the engine."""
        self._need("decoder")
        return Chat(self.engine(**options), Choice.read(chat) if chat else self.generation.chat)

    def _proposer(self, choice: Choice | None) -> Proposer | None:
        """Who guesses tokens; kept, for it may be a model that had to be opened."""
        if choice is not None and (self._guessing is None or self._guessing[0] != choice):
            self._guessing = choice, SPECULATE.build(choice, self)
        return None if choice is None or self._guessing is None else self._guessing[1]

    def _read(self, prompts: Sequence[str]) -> list[list[int]]:
        """The tokens after which a language model goes on."""
        return [self._frame.prompt(ids) for ids in self.tokenizer.encode(prompts)]

    @property
    def _frame(self) -> Frame:
        """What stands about a text that a language model reads."""
        return frame(self.recipe, self.tokenizer)

    def hypotheses(
        self,
        texts: Sequence[str],
        *,
        shortlist: bool = False,
        progress: Callable[[int], None] | None = None,
        **changes: Any,
    ) -> list[list[Hypothesis]]:
        """The n best outputs of each text, or continuations of each prompt, as tokens with scores.

        ``changes`` are fields of GenerationConfig, for translations also what else ``translate`` takes. With ``shortlist`` the
        source suggests all that is said.
        """
        self._need("encoder-decoder", "decoder", hypotheses=(texts,))
        most, few = self.config.max_len, granted(self.shortlist, shortlist, len(self.members) > 1)
        if self.config.kind == "decoder" and changes.get("prefix") is None:
            changes.pop("prefix", None)
            config = changed(self.generation, changes, "the likeliest texts")
            found = likeliest(self._need("decoder"), self.tokenizer, config, self._read(texts), most)
        else:
            model = self._need("encoder-decoder")
            found = translations(model, self.tokenizer, self.generation, texts, most, few, **changes)
        return in_order(found, len(texts), progress)

    @overload
    def translate(self, texts: Sequence[str], *, n_best: None = None, **changes: Any) -> list[str]: ...
    @overload
    def translate(self, texts: Sequence[str], *, n_best: int, **changes: Any) -> list[list[str]]: ...
    def translate(
        self, texts: Sequence[str], *, n_best: int | None = None, **changes: Any
    ) -> list[str] | list[list[str]]:
        """The best translation of each text, or the ``n_best`` of each where that is given here.

        ``changes`` are fields of GenerationConfig, such as beam_size=5 and length_penalty=1.0; ``prefix``, how each
        translation must begin; ``terms``, what it must say for words of a text, as {"dog": ["Hund", "Hündin"]}; languages
        of a model of many, source_lang="en" and target_lang="de". With temperature=1.0, top_k, top_p or min_p they are drawn, by a ``seed``.
        """
        self._need("encoder-decoder", translate=(texts,))
        found = self.hypotheses(texts, n_best=1 if n_best is None else n_best, **changes)
        if n_best is None:
            return decode_whole(self.tokenizer, [best[0].tokens for best in found])
        return [decode_whole(self.tokenizer, [h.tokens for h in best]) for best in found]

    def score(
        self, sources: Sequence[str], targets: Sequence[str] | None = None, batch_tokens: int = BATCH_TOKENS
    ) -> list[PairScore]:
        """log p(target | source) of each pair, or log p(text) of texts alone, in batches of so many tokens a side."""
        model = self._need("encoder-decoder", "decoder", score=(sources, targets))
        return scored(model, self.tokenizer, self._frame, sources, targets, batch_tokens)

    def perplexity(self, sources: Sequence[str], targets: Sequence[str] | None = None) -> float:
        """exp of the mean negative log-likelihood of a token of the targets, or of texts alone; their ends included."""
        self._need("encoder-decoder", "decoder", perplexity=(sources, targets))
        return perplexity(self.score(sources, targets))

    def classify(self, texts: Texts, batch_tokens: int = 4096) -> list[Classified]:
        """The class of each text, or of each pair (a, b), and the probability of every class; of a reranker its score."""
        return self.classified(texts, batch_tokens).found

    def classified(self, texts: Texts, batch_tokens: int = 4096) -> Answers:
        """As ``classify``, and how many of the texts were cut to how many tokens."""
        self._need("classifier")
        check_learned(texts, len(self.recipe.data.text) if self.recipe else 0)
        return classify(self.members, texts, self.generation, batch_tokens)

    def fill_mask(self, texts: Sequence[str], top: int = 5) -> list[list[list[Fill]]]:
        """For each text and each mask in it, written <mask> or [MASK], the likeliest tokens with their probabilities."""
        return fill_mask(self._need("encoder", fill_mask=(texts,)), self.tokenizer, texts, top)

    def embed(self, texts: Sequence[str | Sequence[int]], **changes: Any) -> Tensor:
        """One vector for each text or its tokens (N, C); ``pooling`` is "mean", "first", "last", "max" or "own"."""
        return self.embedded(texts, **changes).vectors

    def embedded(self, texts: Sequence[str | Sequence[int]], **changes: Any) -> Embedded:
        """As ``embed``, and how many of the texts were cut."""
        self._alone("vectors are")
        model = self._need("encoder" if self.kind == "encoder-decoder" else self.kind)
        given = self.tokenizer, texts, changed(self.generation, changes, "vectors of texts")
        return embed(model, *given, about_vectors(self.config, self.recipe, self.tokenizer))

    def measure(self, text: Text) -> Perplexity:
        """How well a language model predicts files of plain text (``polyhead.data.text.open_text``)."""
        width = min(self.recipe.data.max_len if self.recipe else self.config.max_len, self.config.max_len)
        return of_text(self._need("decoder"), self.tokenizer, text, width, self.generation.batch_tokens)

    def attention(self, source: str, target: str | None = None) -> tuple[list[str], list[str], Tensor]:
        """Source tokens, target tokens and cross-attention (layers, heads, T, S); row t is of what predicts target token t."""
        self._need("encoder-decoder")
        return cross(self.attention_maps(source, target))

    def attention_maps(self, source: str, target: str | None = None) -> dict[str, AttentionMap]:
        """Every kind of attention of a pair ("cross", "encoder", "decoder"), the run's own translation if not given.

        A model of one side has one kind, "self", and no target.
        """
        self._alone("attention is")
        given = self.model, self.tokenizer, self._frame, source, target
        return maps(*given, lambda: self.hypotheses([source])[0][0].tokens)

    def display(self, token: int) -> str:
        """A token as a person reads it; bytes that are no whole character are written as ⟨E4 B8⟩."""
        return display(self.tokenizer, token)

    def evaluate(
        self, sources: Sequence[str], references: Sequence[str], lang: str = "", **changes: Any
    ) -> Evaluation:
        """BLEU and chrF of detokenised free-running output, and the outputs themselves: the best of each source."""
        check_same_length(sources, references)
        return evaluated(self.translate(sources, truncate=True, **changes), references, lang)

    def save(self, directory: str | Path, facts: str = "") -> None:
        """Write the run as a Hugging Face style directory."""
        if is_packed(self.model):
            raise UserError(
                "a run that was opened for inference alone cannot be saved; load it in fp32 or bf16 and without fast"
            )
        self.save_description(directory := Path(directory))
        if facts:
            replace_file(directory / "README.md", facts.encode())
        write_weights(directory, self.model, self.tokenizer)

    def save_description(self, directory: str | Path) -> None:
        """All of the directory but the weights: what a checkpoint needs beside it to be read."""
        self._alone("a directory is")
        describe(directory := Path(directory), self.model, self.tokenizer, self.generation, self.family)
        if self.recipe:
            replace_file(directory / "recipe.yaml", self.recipe.dump_yaml().encode())
