"""Samples of models that write or compare texts: outputs, scores by length, and the nearest texts."""

from __future__ import annotations

from itertools import islice
from typing import Any

from polyhead.data.batching.packing import split_documents
from polyhead.data.batching.token_windows import TokenWindows, collate_windows
from polyhead.data.readers.parallel_corpus import read_pairs
from polyhead.data.readers.preferences import TextAnswer
from polyhead.evaluate.metrics import SHORT_TEXT_METRIC, score_translations
from polyhead.introspect.attention_map import AttentionMap
from polyhead.models import CausalLM
from polyhead.nn.device import to_model_device
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.run.run import Run
from polyhead.run.search_texts import search_texts
from polyhead.train.samples.base import (
    collect_attention,
    collect_self_attention,
    decode_readable,
    group_mean,
    is_short,
    label_nlls,
    make_examples,
    shorten_text,
    spread_evenly,
    take_samples,
    token_kinds,
)
from polyhead.train.tasks.chat import ChatTask, open_split_conversations
from polyhead.train.tasks.common import causal_lm_features
from polyhead.train.tasks.embedding import EmbeddingTask, open_split_pairs
from polyhead.train.tasks.language import LanguageModelingTask
from polyhead.train.tasks.preferences import PreferenceTask, open_split_preferences
from polyhead.train.tasks.translation import (
    EVAL_PAIRS,
    TranslationTask,
    open_split_corpus,
    translate_sources,
    with_source_tags,
)
from polyhead.viz.samples import (
    Breakdown,
    Samples,
    break_down,
    group_by_length,
    group_by_name,
    spread_by_length,
)

_N_PROMPTS, _PROMPT_TOKENS, _OUTPUT_TOKENS = 6, 16, 40  # prompts; tokens of a prompt and of its continuation
MAX_CONVERSATIONS = 64  # conversations that are searched for short enough ones
LOSS_ROWS = 8  # rows for the breakdown of losses, one at a time


@take_samples.register
def language_samples(task: LanguageModelingTask, run: Run) -> Samples:
    """Continuations of prompts from the validation text."""
    prompt_len = max(1, min(_PROMPT_TOKENS, task.width // 2))
    output_len = max(1, min(_OUTPUT_TOKENS, run.config.max_len - prompt_len - 2))
    excerpt_len = prompt_len + output_len
    starts = _prompt_starts(task, excerpt_len)
    excerpts = [task.valid.ids[start : start + excerpt_len].tolist() for start in starts]
    prompts = [decode_readable(run.tokenizer, excerpt[:prompt_len]) for excerpt in excerpts]
    references = [decode_readable(run.tokenizer, excerpt[prompt_len:]) for excerpt in excerpts]
    outputs = run.generate(prompts, seed=1, max_new_tokens=output_len)
    rows = [
        collate_windows(task.valid, row_start, task.width, has_documents=task.has_documents)
        for row_start in spread_evenly(max(1, len(task.valid) - task.width), LOSS_ROWS)[:, None]
    ]
    return Samples(
        description="Continuations of excerpts of the validation text, sampled with one seed, compared "
        "with the original text.",
        columns=("Prompt", "Continuation", "Text"),
        differences="none",
        examples=make_examples(prompts, outputs, references),
        breakdowns=_break_down_losses(run, rows),
        attention=_collect_short(run, prompts),
    )


@take_samples.register
def chat_samples(task: ChatTask, run: Run) -> Samples:
    """Answers to the first user turns of some validation conversations without tools."""
    assert run.recipe is not None
    read = open_split_conversations(run.recipe, "valid").read()
    conversations = (row.messages for _, row in read if not row.tools.all_tools)
    chat = run.chat_session(run.generation.chat or ChatTask.chat)
    examples: list[dict[str, Any]] = []
    for messages in islice(conversations, MAX_CONVERSATIONS):
        first_answer = next(i for i, message in enumerate(messages) if message.role == "assistant")
        question, answer = messages[:first_answer], messages[first_answer].content
        max_output = run.config.max_len - len(chat.encode_prompt(question))
        if max_output > 0 and len(examples) < _N_PROMPTS:
            output = "".join(chat.answer(question, seed=1, max_new_tokens=min(_OUTPUT_TOKENS, max_output)))
            prompt = "\n".join(message.content for message in question)
            examples += make_examples([prompt], [output], [answer])
    row_ids = spread_evenly(len(task.valid), LOSS_ROWS)
    rows = [task.make_batch("valid", row_id) for row_id in row_ids[:, None]]
    return Samples(
        description="The model's answers, sampled with one seed, compared with those of the validation "
        "conversations.",
        columns=("Conversation", "Answer", "Text"),
        differences="none",
        examples=examples,
        breakdowns=_break_down_losses(run, rows),
        attention=_collect_short(run, [example["source"] for example in examples]),
    )


@take_samples.register
def preference_samples(task: PreferenceTask, run: Run) -> Samples:
    """Answers to the prompts of some validation preferences that are texts, and the chosen answers."""
    assert run.recipe is not None
    read = open_split_preferences(run.recipe, "valid").read()
    chosen = (row.answers[0] for _, row in read if row.is_chosen[0])
    room = run.config.max_len - _OUTPUT_TOKENS - 1
    answers = [
        answer
        for answer in islice(chosen, MAX_CONVERSATIONS)
        if isinstance(answer, TextAnswer) and len(run.tokenizer.encode([answer.prompt])[0]) < room
    ][:_N_PROMPTS]
    prompts = [answer.prompt for answer in answers]
    outputs = run.generate(prompts, seed=1, max_new_tokens=_OUTPUT_TOKENS) if prompts else []
    return Samples(
        description="The model's answers, sampled with one seed, compared with the chosen answers of the "
        "validation preferences.",
        columns=("Prompt", "Answer", "Chosen"),
        differences="none",
        examples=make_examples(prompts, outputs, [answer.completion for answer in answers]),
    )


def _collect_short(run: Run, texts: list[str]) -> list[AttentionMap]:
    """Maps of the self-attention for the texts that are short enough."""
    return collect_self_attention(run, [text for text in texts if is_short(run.tokenizer, text)])


def _prompt_starts(task: LanguageModelingTask, length: int) -> list[int]:
    """Start positions of prompts: at documents that are long enough, else evenly spaced in the text."""
    documents = split_documents(task.valid, -1)
    long_starts = documents.starts[documents.lengths >= length]
    if len(long_starts) >= _N_PROMPTS:
        return [int(long_starts[len(long_starts) * i // _N_PROMPTS]) for i in range(_N_PROMPTS)]
    return spread_evenly(max(1, len(task.valid) - length + 1), _N_PROMPTS).tolist()


def _break_down_losses(run: Run, rows: list[TokenWindows]) -> list[Breakdown]:
    """Loss per token, by number of preceding tokens and by kind of token."""
    assert isinstance(run.model, CausalLM)
    losses: list[float] = []
    positions: list[int] = []
    labels: list[int] = []
    for row in rows:
        row = to_model_device(run.model, row)
        has_label = row.labels != IGNORE_INDEX
        features, row_labels = causal_lm_features(run.model, row)[has_label], row.labels[has_label]
        losses += label_nlls(run.model.head, features, row_labels)
        labels += row_labels.tolist()
        positions += (has_label[0].nonzero().flatten() + 1).tolist()
    mean_loss = group_mean(losses)
    kinds = group_by_name(token_kinds(run.tokenizer, labels))
    return [
        break_down("Loss per token", "preceding tokens", group_by_length(positions), mean_loss),
        break_down("Loss per token", "kind of token", kinds, mean_loss),
    ]


_N_TEXTS, _N_EXAMPLES = 200, 12


@take_samples.register
def embedding_samples(task: EmbeddingTask, run: Run) -> Samples:
    """The text nearest to each of some validation anchors, and the one that belongs to it; none of scores."""
    assert run.recipe is not None
    if task.valid.is_scored:
        return Samples()
    pairs = [pair for _, pair in islice(open_split_pairs(run.recipe, "valid").read(), _N_TEXTS)]
    texts = [*dict.fromkeys(pair.positive for pair in pairs)]
    vectors = run.embed(texts, normalize=True).numpy()
    examples = pairs[:_N_EXAMPLES]
    nearest = [search_texts(run, pair.anchor, texts, vectors, 1)[0].text for pair in examples]
    return Samples(
        description="The nearest of the second texts of up to 200 validation pairs, compared with the text "
        "that belongs to the first.",
        columns=("Text", "Nearest", "Belongs"),
        differences="none",
        examples=make_examples([pair.anchor for pair in examples], nearest, [p.positive for p in examples]),
    )


N_PAIRS = 32  # translated pairs


@take_samples.register
def translation_samples(task: TranslationTask, run: Run) -> Samples:
    """Greedy translations of some of the first validation pairs, and scores and exact match by length."""
    assert run.recipe is not None
    corpora = open_split_corpus(run.recipe, "valid").parts
    greedy = run.generation.model_copy(update={"beam_size": 1, "n_best": 1})
    sources, references, outputs = list[str](), list[str](), list[str]()
    for corpus in corpora:
        all_sources, all_references, _ = read_pairs(corpus, EVAL_PAIRS)
        model = with_source_tags(Run(run.model, run.tokenizer, greedy, run.recipe), corpus.source_tags)
        rows = spread_by_length(all_sources, max(1, N_PAIRS // len(corpora)))
        outputs += translate_sources(model, [all_sources[row] for row in rows], map)
        sources += [all_sources[row] for row in rows]
        references += [all_references[row] for row in rows]
    lengths = [len(ids) for ids in run.tokenizer.encode(sources)]

    def score(rows: list[int]) -> float:
        texts = [outputs[row] for row in rows], [references[row] for row in rows]
        return score_translations(SHORT_TEXT_METRIC, *texts).value

    is_exact = [100 * (a == b) for a, b in zip(outputs, references, strict=True)]
    groups, label = group_by_length(lengths), "length of the source in tokens"
    # of the last corpus, whose tags the model has
    pairs = list(zip(sources, outputs, strict=True))[-len(rows) :]
    short_pairs = [(source, output) for source, output in pairs if is_short(run.tokenizer, source)]
    maps = collect_attention(
        model,
        "cross",
        *((s, shorten_text(run.tokenizer.target_tokenizer, o)) for s, o in reversed(short_pairs[-3:])),
    )
    return Samples(
        description="Greedy translations of validation pairs, evenly spaced from short to long.",
        examples=make_examples(sources, outputs, references),
        breakdowns=[
            break_down(SHORT_TEXT_METRIC.label, label, groups, score),
            break_down("Exact match (%)", label, groups, group_mean(is_exact)),
        ],
        attention=maps,
    )
