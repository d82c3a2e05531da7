import math

import numpy as np

V, MASK = 60, 4
IS_SPECIAL = np.arange(V) < 5


def is_likely(count, n, p):
    """Whether a count of n draws is within 4.5 standard deviations (1 failure in 10^5)."""
    return abs(count - n * p) < 4.5 * math.sqrt(n * p * (1 - p)) + 1e-9
