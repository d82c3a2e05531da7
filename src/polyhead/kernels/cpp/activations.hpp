// Activation functions of feed-forward layers.
#pragma once
#include "vectors.hpp"

namespace {

enum Activation : int64_t { PLAIN, RELU, LEAKY, GELU, GELU_TANH, SILU, SIGMOID, TANH, SQUARED, ROUNDED };

Floats size_of(Floats x) { return x < 0 ? -x : x; }

Floats logistic(Floats x) {
    const Floats small = exponential(-size_of(x)), y = 1 / (1 + small);
    return x == x ? (x < 0 ? small * y : y) : x;
}

Floats tangent(Floats x) {  // near 0 the quotient loses precision, so a series is used
    const Floats small = exponential(-2 * size_of(x)), far = (1 - small) / (1 + small), s = x * x;
    const Floats near = x * (1 + s * (-1.0f / 3 + s * (2.0f / 15 - s * (17.0f / 315))));
    return size_of(x) < 0.25f ? near : x == x ? (x < 0 ? -far : far) : x;
}

// x times the probability that a normal variable is below it (Abramowitz & Stegun, 1964, 7.1.26: error at most 8e-8 of x)
Floats gelu(Floats x) {
    const Floats z = size_of(x) * 0.70710678f, t = 1 / (1 + 0.3275911f * z);
    const Floats tail = t * (0.127414796f + t * (-0.142248368f + t * (0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f)))) * exponential(-z * z);
    return x * (x < 0 ? tail : 1 - tail);
}

Floats activated(Floats x, int64_t which, float slope) {
    switch (which) {
        case RELU: return x < 0 ? Floats{} : x;
        case LEAKY: return x < 0 ? x * slope : x;
        case GELU: return gelu(x);
        case GELU_TANH: return x * logistic(1.5957691216f * (x + 0.044715f * x * x * x));
        case SILU: return x * logistic(x);
        case SIGMOID: return logistic(x);
        case TANH: return tangent(x);
        case SQUARED: return x < 0 ? Floats{} : x * x;
        case ROUNDED: {  // to bf16
            bf16 out[LANES];
            store(x, out);
            return load(out);
        }
        default: return x;
    }
}

}  // namespace
