import math
from fractions import Fraction

import pytest

from polyhead import Choice
from polyhead.cache.policies import Policy
from polyhead.lab.cache_claims import format_change, loss_changes, make_cache_claims
from polyhead.lab.divergence import Divergence

ONE = Fraction(1)


def test_claims_follow_the_numbers():
    plain = Divergence(nll=[1.0, 1.1, 0.9], token_counts=[5, 5, 5])
    bad = Divergence(
        kl=[0.5, 0.6, 0.55], nll=[2.0, 2.1, 1.9], top1_agreement=[0.5] * 3, token_counts=[5, 5, 5]
    )
    good = Divergence(kl=[1e-9] * 3, nll=[1.0, 1.1, 0.9], top1_agreement=[1.0] * 3, token_counts=[5, 5, 5])
    chosen = [Policy(name, ONE, Choice("window")) for name in ("static", "window 1/4", "window+sink 1/4")]
    broken = make_cache_claims(
        [chosen[0]._replace(family="static"), *chosen[1:]],
        {"static": good, "window 1/4": bad, "window+sink 1/4": good},
        plain,
    )
    # exact, breaks, sink better, sink keeps
    assert [claim.is_supported for claim in broken] == [True, True, True, True]
    intact = make_cache_claims(
        [chosen[0]._replace(family="static"), *chosen[1:]],
        {"static": bad, "window 1/4": good, "window+sink 1/4": bad},
        plain,
    )
    assert [claim.is_supported for claim in intact] == [False, False, False, False]
    assert loss_changes(bad, plain) == pytest.approx([1.0] * 3)
    assert format_change([math.log(1.5)] * 2).startswith("+50 ")
    assert format_change([math.log(3)] * 2).startswith("+200 ")
    assert format_change([1e-9, -1e-9]) == "none"
    uneven = Divergence(
        nll=[2.0, 1.1], token_counts=[9, 1]
    )  # the mean of the changes is the change of the perplexity
    other = Divergence(nll=[1.5, 1.4], token_counts=[9, 1])
    assert sum(loss_changes(uneven, other)) / 2 == pytest.approx(
        math.log(uneven.perplexity / other.perplexity)
    )
