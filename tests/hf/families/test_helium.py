from tests.hf.families.causal import CausalFamily


class TestHelium(CausalFamily, names=["helium"]): ...
