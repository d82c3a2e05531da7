"""Choose the next token: greedy search, sampling, beam search, and logit processors."""
