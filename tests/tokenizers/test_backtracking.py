import re

import pytest

from polyhead.tokenizers.backtracking import PatternError, check_backtracking
from tokenizers import Regex, pre_tokenizers

# of published tokenizers, with the least number of characters that each matches
PATTERNS = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": 1,
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+": 1,
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|"
    r"\s*[\r\n]|\s+(?!\S)|\s": 1,
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+": 1,
    r" ?[^(\s|[.,!?…。，、।۔،])]+": 1,
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": 1,
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{M}&&[^\p{Han}]]+|\s+": 1,
    r"\d{1,3}(?=(?:\d{3})*\b)": 1,
    r"(?:\p{L}\p{M}*)+| ?\p{N}+": 1,
    " {2,}": 2,
    r"\A +| +\z": 1,
    r"(?:\r?\n)+": 1,
    r"https?://[^\s]+": 8,
    r"\d+(?:[.,]\d+)*": 1,
    r"(?<![a-z])x{3}": 3,
    "[]a]": 1,
    "a|": 0,
    r"(?#x)\{\}": 2,
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_published_patterns_are_accepted(pattern):
    Regex(pattern)
    assert check_backtracking(pattern) == PATTERNS[pattern]


# each with a text on which the matcher gives up
EXPONENTIAL = {
    r"(a+)+$": "a" * 40 + "b",
    r"(a|a)*b": "a" * 40 + "cb",
    r"(a|aa)+$": "a" * 60 + "b",
    r"(.*)*x": "a" * 40 + "\nx",
    r"(x+x+)+y": "x" * 40,
    r"((abc)+)*$": "abc" * 30 + "d",
    r"(\w+\s?)*$": "a" * 40 + "!",
    r"(foo|foo)*\z": "foo" * 30 + "!",
    r"a*a*a*a*a*a*b": "a" * 120 + "cb",
    r"(?=(a+)+$)b": "a" * 40 + "c",
    r"^(([a-z])+.)+[A-Z]([a-z])+$": "a" * 60,
    r"(a{1,50})+$": "a" * 40 + "b",
    r"x(?:y(?:(\d+)+)z)?": "",
    r"(?i:(a|A)+)+$": "aA" * 20 + "b",
}


@pytest.mark.parametrize("pattern", EXPONENTIAL)
def test_exponential_patterns_are_refused(pattern):
    with pytest.raises(PatternError, match="exponential"):
        check_backtracking(pattern)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [pattern for pattern, text in EXPONENTIAL.items() if text])
def test_matcher_panics_on_refused_patterns(pattern):
    with pytest.raises(BaseException, match="retry-limit"):
        pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(EXPONENTIAL[pattern])


UNANALYSABLE = {
    "[": "not closed",
    "(": "not closed",
    "a)": "not opened",
    "(?x) a": "blanks",
    r"(?<n>a\g<n>?)b": "refers to",
    r"(a)(?:\1|a)*b": "refers to",
    "(?~a)": "kind",
    "(" * 60 + ")" * 60: "nested",
    "a" * 30_000: "30,000 characters",
    "a?" * 4_000: "too many parts",
    "(?:){8}{8}{8}{8}{8}{8}{8}{8}{8}": "too many parts",
    "(?:" * 40 + "a" + "{2})" * 40: "too many parts",
}


@pytest.mark.parametrize("pattern", UNANALYSABLE)
def test_unanalysable_patterns_are_refused(pattern):
    with pytest.raises(PatternError, match=re.escape(UNANALYSABLE[pattern])):
        check_backtracking(pattern)
