from polyhead.core.errors import did_you_mean


def test_did_you_mean_needs_similar_names():
    assert did_you_mean("foo", ["tools", "tool_choice", "user"]) == ""
    assert did_you_mean("norm.fist", ["norm", "norm.first"]) == "; did you mean 'norm.first'?"
    assert did_you_mean("norm.eps=1", ["norm", "norm.first"]) == "; did you mean 'norm'?"
    assert did_you_mean("fp8", ["fp32", "bf16"]) == did_you_mean(16, ["bf16"]) == ""
    assert did_you_mean("float16", ["bf16", "fp32"]) == ""
    assert did_you_mean("elo", ["elu", "gelu"]) == "; did you mean 'elu'?"
    assert did_you_mean("tool", ["tools", "tool_choice", "user"]) == "; did you mean 'tools'?"
    assert did_you_mean("temp", ["terms", "temperature"]) == "; did you mean 'temperature'?"
    # the ratio of difflib is 0.6 in one order of the two words and 0.8 in the other
    assert did_you_mean("tetha", ["theta", "factor"]) == "; did you mean 'theta'?"
