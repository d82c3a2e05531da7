"""How many tokens a page holds: long pages waste the end of a row, short ones cost more tables."""

WASTE = 0.04  # of the slots, at most, where the block is chosen here
BLOCKS = (32, 16, 8, 4, 2)


def waste(block: int, length: float) -> float:
    """The share of slots that stand empty: half a block less half a slot at the end of each row, on average."""
    return (block - 1) / 2 / (length + (block - 1) / 2)


def block_for(length: float) -> int:
    """The largest block that wastes less than 4 % where rows have so many tokens."""
    return next((block for block in BLOCKS if waste(block, length) < WASTE), 1)
