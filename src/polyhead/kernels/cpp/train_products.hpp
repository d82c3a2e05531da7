// Products of a training step that end in what follows them: an activation, or dropout and a residual.
#pragma once
#include "products.hpp"
#include "train_elementwise.hpp"

namespace {

// x (M, K) times the packed matrix (N, K) plus the bias (N) -> `out` and its activation after dropout, (M, N) each
template <class T>
void linear_activation(const T* x, const float* packed, const float* bias, Drop drop, T* out, T* active, long M, long N, long steps,
                       int64_t which, float slope) {
    choose_activation(which, [&](auto kind) {
#pragma omp parallel
        products<T>(reinterpret_cast<const float*>(x), packed, M, N, steps, [&](long n, long there) {
            const Floats more = optional(bias, n, there);
            return [=](long m, Floats sum) {
                const long at = m * N + n;
                store(sum + more, out + at, there);
                store(drop(activated(sum + more, kind, slope), at, there), active + at, there);
            };
        });
    });
}

// residual + dropout(x (M, K) times the packed matrix (N, K) plus the bias (N)) -> (M, N)
template <class T>
void linear_residual(const T* x, const float* packed, const float* bias, const float* residual, Drop drop, float* out, long M, long N,
                     long steps) {
#pragma omp parallel
    products<T>(reinterpret_cast<const float*>(x), packed, M, N, steps, [&](long n, long there) {
        const Floats more = optional(bias, n, there);
        return [=](long m, Floats sum) {
            const long at = m * N + n;
            store(load(residual + at, there) + drop(sum + more, at, there), out + at, there);
        };
    });
}

}  // namespace

#define POLYHEAD_TRAINING_PRODUCTS(T)                                                                                              \
    void linear_activation_##T(const T* x, const float* packed, const float* bias, const uint8_t* bytes, int64_t threshold,        \
                               float scale, T* out, T* active, long M, long N, long steps, int64_t which, float slope) {           \
        linear_activation(x, packed, bias, {bytes, threshold, scale}, out, active, M, N, steps, which, slope);                     \
    }                                                                                                                              \
    void linear_residual_##T(const T* x, const float* packed, const float* bias, const float* residual, const uint8_t* bytes,      \
                             int64_t threshold, float scale, float* out, long M, long N, long steps) {                             \
        linear_residual(x, packed, bias, residual, {bytes, threshold, scale}, out, M, N, steps);                                   \
    }

extern "C" {
POLYHEAD_TRAINING_PRODUCTS(fp32)
POLYHEAD_TRAINING_PRODUCTS(bf16)
}
#undef POLYHEAD_TRAINING_PRODUCTS
