import json
import re
from pathlib import Path

import pytest

from polyhead.tokenizers.backtracking import PatternError, check_backtracking
from tokenizers import Regex, pre_tokenizers

TABLES = json.loads((Path(__file__).parent / "backtracking_patterns.json").read_text(encoding="utf-8"))
# of published tokenizers, with the least number of characters that each matches
PATTERNS = TABLES["accepted"]
# each with a text on which the matcher gives up
EXPONENTIAL = TABLES["exponential"]
UNANALYSABLE = TABLES["unanalysable"] | {
    "(" * 60 + ")" * 60: "nested",
    "(a)" * 20 + "(" * 60 + ")" * 60: "nested",  # the groups before it are closed
    "a" * 30_000: "30,000 characters",
    "a?" * 4_000: "too many parts",
    "(?:" * 40 + "a" + "{2})" * 40: "too many parts",
}


@pytest.mark.whole
@pytest.mark.parametrize("pattern", PATTERNS)
def test_published_patterns_are_accepted(pattern):
    Regex(pattern)
    assert check_backtracking(pattern) == PATTERNS[pattern]


@pytest.mark.whole
@pytest.mark.parametrize("pattern", [*EXPONENTIAL, *UNANALYSABLE])
def test_exponential_and_unanalysable_patterns_are_refused(pattern):
    with pytest.raises(PatternError, match=re.escape(UNANALYSABLE.get(pattern, "exponential"))):
        check_backtracking(pattern)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [pattern for pattern, text in EXPONENTIAL.items() if text])
def test_matcher_panics_on_refused_patterns(pattern):
    with pytest.raises(BaseException, match="retry-limit"):
        pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(EXPONENTIAL[pattern])
