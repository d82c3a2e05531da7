import math
from fractions import Fraction

import pytest

from polyhead import Choice
from polyhead.cache.policies import Policy
from polyhead_lab.cache_claims import format_change, loss_changes, make_cache_claims
from polyhead_lab.divergence import Divergence

COUNTS = [5, 5, 5]
PLAIN = Divergence(nll=[1.0, 1.1, 0.9], token_counts=COUNTS)
BAD = Divergence(kl=[0.5, 0.6, 0.55], nll=[2.0, 2.1, 1.9], top1_agreement=[0.5] * 3, token_counts=COUNTS)
GOOD = Divergence(kl=[1e-9] * 3, nll=PLAIN.nll, top1_agreement=[1.0] * 3, token_counts=COUNTS)


@pytest.mark.parametrize(("results", "verdict"), [((GOOD, BAD, GOOD), True), ((BAD, GOOD, BAD), False)])
def test_claims_follow_from_divergence(results, verdict):
    """The static cache is exact, a window breaks the model, a sink is better, and keeps the loss."""
    names = ("static", "window 1/4", "window+sink 1/4")
    static, *windows = (Policy(name, Fraction(1), Choice("window")) for name in names)
    policies = [static._replace(family="static"), *windows]
    claims = make_cache_claims(policies, dict(zip(names, results, strict=True)), PLAIN)
    assert [claim.is_supported for claim in claims] == [verdict] * 4


def test_loss_changes_and_their_text():
    assert loss_changes(BAD, PLAIN) == pytest.approx([1.0] * 3)
    assert format_change([math.log(1.5)] * 2).startswith("+50 ")
    assert format_change([math.log(3)] * 2).startswith("+200 ")
    assert format_change([1e-9, -1e-9]) == "none"
    # the mean of the changes is the change of the perplexity
    a, b = (Divergence(nll=nll, token_counts=[9, 1]) for nll in ([2.0, 1.1], [1.5, 1.4]))
    assert sum(loss_changes(a, b)) / 2 == pytest.approx(math.log(a.perplexity / b.perplexity))
