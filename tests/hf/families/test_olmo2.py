from tests.hf.families.causal import CausalFamily


class TestOlmo2(CausalFamily, names=["olmo2"]): ...


class TestOlmo3(CausalFamily, names=["olmo3"]): ...


class TestExaone4(CausalFamily, names=["exaone4"]): ...
