from tests.hf.families.causal import CausalFamily


class TestExaone4(CausalFamily, names=["exaone4"]): ...
