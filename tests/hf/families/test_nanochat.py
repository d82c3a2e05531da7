from tests.hf.families.causal import CausalFamily


class TestNanochat(CausalFamily, names=["nanochat"]): ...
