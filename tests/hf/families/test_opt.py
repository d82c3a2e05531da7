from tests.hf.families.causal import CausalFamily


class TestOpt(CausalFamily, names=["opt"]): ...
