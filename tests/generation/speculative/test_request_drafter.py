import pytest
from tests.generation.run_helpers import make_run
from tests.generation.run_helpers import run as run

from polyhead import Choice
from polyhead.core.errors import UserError
from polyhead.generation.engine.batch import MAX_SPECULATIVE_ROWS
from polyhead.generation.speculative.verify import DraftTokens
from polyhead.run.run import Run

PROMPTS = ["dogs", "a dog barks . a dog barks . a dog", "zwei hunde"]
SETTINGS = [
    {"temperature": 0},
    {"temperature": 1.0, "top_p": 0.9, "seed": 3},
    {"temperature": 0, "repetition_penalty": 1.3, "max_new_tokens": 90},  # longer than max_len
    {"temperature": 0.7, "stop_token_ids": [70, 71, 72], "min_new_tokens": 4},
    {"temperature": 0, "grammar": {"name": "regex", "pattern": "(a dog |dogs ){2,9}"}},
]


class Oracle:
    def __init__(self, outputs, wrong_from):
        self.outputs, self.wrong_from, self.num_proposals = outputs, wrong_from, 0

    def start(self, prompts, context):
        return self

    def propose(self, texts, streams, max_tokens):
        self.num_proposals += 1
        (text,), (room,) = texts, max_tokens
        (prompt,) = [ids for ids in self.outputs if tuple(text[: len(ids)]) == ids]
        start = len(text) - len(prompt)
        right = enumerate(self.outputs[prompt][start : start + 6])
        return [DraftTokens([(t + (i >= self.wrong_from)) % 290 for i, t in right][: max(0, room)])]

    def reorder(self, rows): ...


def generate(run, proposer, prompts, **options):
    engine = run.engine(max_num_seqs=8)
    engine.proposer = proposer
    streams = [engine.submit(prompt, **options) for prompt in prompts]
    steps = 0
    while not engine.engine.idle:
        engine.engine.step()
        steps += 1
    for stream in streams:
        stream.collect_texts()
    return [stream.tokens[0] for stream in streams], steps


@pytest.mark.parametrize("options", SETTINGS, ids=range(len(SETTINGS)))
@pytest.mark.parametrize("wrong_from", [0, 2, 9])
def test_drafts_save_steps_and_change_no_token(run, options, wrong_from):
    if "grammar" in options:
        pytest.importorskip("llguidance")
    expected, plain_steps = generate(run, None, PROMPTS, **options)
    prompts = [tuple(run.engine().encode_prompt(prompt)) for prompt in PROMPTS]
    oracle = Oracle(dict(zip(prompts, expected, strict=True)), wrong_from)
    tokens, steps = generate(run, oracle, PROMPTS, **options)
    assert tokens == expected and oracle.num_proposals
    longest = max(map(len, expected))
    if wrong_from == 0:
        assert steps >= plain_steps
    if wrong_from == 9 and 7 < longest < 40:
        assert steps <= plain_steps - longest // 2


def test_requests_are_decoded_without_drafts(run):
    prompts = [f"{'dogs ' * i}a" for i in range(MAX_SPECULATIVE_ROWS + 1)]
    options = {"temperature": 0, "max_new_tokens": 5, "ignore_eos": True}
    expected, _ = generate(run, None, prompts, **options)
    oracle = Oracle({(): []}, 0)
    assert generate(run, oracle, prompts, **options)[0] == expected and oracle.num_proposals == 0
    engine = run.engine()
    engine.proposer = oracle
    engine.submit("dogs", n=2, **options).collect_texts()  # several samples have no drafts
    assert oracle.num_proposals == 0

    class Broken:
        def start(self, prompts, context):
            raise UserError("the draft model's output is NaN")

    expected, _ = generate(run, None, PROMPTS, temperature=0)
    assert generate(run, Broken(), PROMPTS, temperature=0)[0] == expected
    with pytest.raises(UserError, match="cache 'h2o' cannot remove tokens; caches that can"):
        run.engine(cache=Choice("h2o", budget=8), speculative="lookup")
    with pytest.raises(UserError, match="only language models support speculative"):
        make_run("encoder-decoder").engine(speculative="lookup")
    with pytest.raises(UserError, match="speculative is a setting of the engine, not of a request"):
        run.engine().submit("dogs", speculative="lookup")


@pytest.mark.parametrize(
    ("cache", "choice"),
    [("paged", "lookup"), *((c, {"name": "lookup", "tokens": 9, "ngram": 2}) for c in ("static", "growing"))],
)
def test_engine_with_prompt_lookup_equals_plain_engine(run, choice, cache):
    options, prompt = {"seed": 5, "max_new_tokens": 40}, "a dog barks . two dogs bark . "
    expected = run.engine(cache=cache).submit(prompt, **options).collect_texts()
    generation = run.generation.model_copy(update={"speculative": Choice("lookup")})
    assert Run(run.model, run.tokenizer, generation).engine().proposer is not None
    assert run.engine().proposer is None
    engine = run.engine(cache=cache, speculative=choice)
    assert engine.submit(prompt, **options).collect_texts() == expected == run.generate([prompt], **options)
