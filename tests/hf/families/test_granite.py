from tests.hf.families.causal import CausalFamily


class TestGranite(CausalFamily, names=["granite", "granitemoe"]): ...
