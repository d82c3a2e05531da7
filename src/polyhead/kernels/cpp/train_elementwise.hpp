// Passes between the products of a training step: norms, activations, dropout and residuals, forward and backward.
//
// Rows (R, C) are contiguous. The residual stream and all statistics are fp32; T is the storage type of what products read and write.
// A sum over rows is that of blocks of rows, so its bits do not depend on the number of threads.
#pragma once
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "activations.hpp"

namespace {

constexpr long BLOCK_ROWS = 64;  // of a partial sum over rows

// Dropout from random bytes: an element is kept where its byte is at least the threshold. Without bytes everything is kept.
struct Drop {
    const uint8_t* bytes;
    int64_t threshold;
    float scale;
    Floats operator()(Floats x, long at, long n) const {
        if (!bytes) return x * scale;
        uint8_t few[LANES] = {};
        if (n < LANES) std::memcpy(few, bytes + at, n);
        return load_bytes(n < LANES ? few : bytes + at) < int32_t(threshold) ? Floats{} : x * scale;
    }
};

// Calls body(start, count) for each vector of a row.
template <class Body>
inline __attribute__((always_inline)) void for_vectors(long width, Body body) {
    long c = 0;
    for (; c + LANES <= width; c += LANES) body(c, std::integral_constant<long, LANES>());
    if (c < width) body(c, width - c);
}

const Ints LANE = [] {
    Ints lanes = {};
    for (int j = 0; j < LANES; j++) lanes[j] = j;
    return lanes;
}();

Floats optional(const float* x, long at, long n) { return x ? load(x + at, n) : Floats{}; }

// Calls rows(first, last, sums) for blocks of rows in parallel, where sums are `width` zeros, and adds these up -> out (width).
template <class Rows>
void sum_blocks(long R, long width, float* out, Rows rows) {
    const long blocks = (R + BLOCK_ROWS - 1) / BLOCK_ROWS;
    std::vector<float> sums(std::max(blocks, 1L) * width);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (long block = 0; block < blocks; block++)
            rows(block * BLOCK_ROWS, std::min(R, (block + 1) * BLOCK_ROWS), &sums[block * width]);
#pragma omp for schedule(static)
        for (long c = 0; c < width; c += LANES) {
            const long n = std::min(LANES, width - c);
            Floats sum = {};
            for (long block = 0; block < blocks; block++) sum += load(&sums[block * width + c], n);
            store(sum, out + c, n);
        }
    }
}

// ---- norms

// Factors and offsets of a norm; the factor is weight + shift, and 1 without a weight.
struct Affine {
    const float *weight, *bias;
    float shift;
    Floats factor(long c, long n) const { return weight ? load(weight + c, n) + shift : Floats{} + 1.0f; }
};

// Layer norm of rows, or RMS norm without `centre`; stats (R, 2) are the mean, or 0, and the reciprocal deviation.
template <class T>
void norm(const float* x, Affine affine, T* out, float* stats, long R, long C, float eps, bool centre) {
#pragma omp parallel for schedule(static)
    for (long r = 0; r < R; r++) {
        const float* row = x + r * C;
        Floats sum = {}, squares = {};
        float mean = 0;
        if (centre) {
            for_vectors(C, [&](long c, auto n) { sum += load(row + c, n); });
            mean = total(sum) / C;
        }
        for_vectors(C, [&](long c, auto n) {
            const Floats here = LANE < int32_t(n) ? load(row + c, n) - mean : Floats{};
            squares += here * here;
        });
        const float scale = 1 / std::sqrt(total(squares) / C + eps);
        stats[2 * r] = mean, stats[2 * r + 1] = scale;
        for_vectors(C, [&](long c, auto n) {
            store((load(row + c, n) - mean) * scale * affine.factor(c, n) + optional(affine.bias, c, n), out + r * C + c, n);
        });
    }
}

// Gradients of a norm: that of x, added to that of the residual if there is one, and sums (2, C) of those of weight and bias.
template <class T>
void norm_gradient(const T* grad, const float* x, const float* stats, Affine affine, const float* residual, float* out, float* sums,
                   long R, long C, bool centre) {
    sum_blocks(R, 2 * C, sums, [&](long first, long last, float* here) {
        for (long r = first; r < last; r++) {
            const T* g = grad + r * C;
            const float* row = x + r * C;
            const float mean = stats[2 * r], scale = stats[2 * r + 1];
            Floats plain = {}, along = {};
            for_vectors(C, [&](long c, auto n) {
                const Floats given = load(g + c, n), normed = (load(row + c, n) - mean) * scale, scaled = given * affine.factor(c, n);
                plain += scaled, along += scaled * normed;  // beyond the row `scaled` is 0
                store(load(here + c, n) + given * normed, here + c, n);
                store(load(here + C + c, n) + given, here + C + c, n);
            });
            const float shared = centre ? total(plain) / C : 0, slope = total(along) / C;
            for_vectors(C, [&](long c, auto n) {
                const Floats normed = (load(row + c, n) - mean) * scale;
                const Floats d = (load(g + c, n) * affine.factor(c, n) - shared - normed * slope) * scale;
                store(residual ? d + load(residual + r * C + c, n) : d, out + r * C + c, n);
            });
        }
    });
}

// ---- activations

struct Slope {
    Floats value, derivative;
};

Slope with_derivative(Floats x, int64_t which, float slope) {
    const Floats one = Floats{} + 1.0f;
    switch (which) {
        case RELU: return {x < 0 ? Floats{} : x, x > 0 ? one : Floats{}};
        case LEAKY: return {x > 0 ? x : x * slope, x > 0 ? one : one * slope};
        case GELU: {
            const Floats z = size_of(x) * 0.70710678f, t = 1 / (1 + 0.3275911f * z), bell = exponential(-z * z);
            const Floats tail = t * (0.127414796f + t * (-0.142248368f + t * (0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f)))) * bell;
            const Floats below = x < 0 ? tail : 1 - tail;
            return {x * below, below + x * bell * 0.3989422804f};
        }
        case GELU_TANH: {
            const Floats s = logistic(1.5957691216f * (x + 0.044715f * x * x * x));
            return {x * s, s + x * s * (1 - s) * (1.5957691216f + 0.2140644489f * x * x)};
        }
        case SILU: {
            const Floats s = logistic(x);
            return {x * s, s + x * s * (1 - s)};
        }
        case SIGMOID: {
            const Floats s = logistic(x);
            return {s, s * (1 - s)};
        }
        case TANH: {
            const Floats t = tangent(x);
            return {t, 1 - t * t};
        }
        case SQUARED: return {x < 0 ? Floats{} : x * x, x > 0 ? 2 * x : Floats{}};
        default: return {x, one};
    }
}

// Calls body with the activation as a constant, so that no vector asks which one it is.
template <class Body>
void choose_activation(int64_t which, Body body) {
    switch (which) {
        case RELU: return body(std::integral_constant<int64_t, RELU>());
        case LEAKY: return body(std::integral_constant<int64_t, LEAKY>());
        case GELU: return body(std::integral_constant<int64_t, GELU>());
        case GELU_TANH: return body(std::integral_constant<int64_t, GELU_TANH>());
        case SILU: return body(std::integral_constant<int64_t, SILU>());
        case SIGMOID: return body(std::integral_constant<int64_t, SIGMOID>());
        case TANH: return body(std::integral_constant<int64_t, TANH>());
        case SQUARED: return body(std::integral_constant<int64_t, SQUARED>());
        default: return body(std::integral_constant<int64_t, PLAIN>());
    }
}

// x (R, F), or (R, 2F) of a gate and what it scales -> the activation after dropout (R, F)
template <class T>
void activate(const T* x, Drop drop, T* out, long R, long F, int64_t which, float slope, bool gated) {
    const long width = gated ? 2 * F : F;
    choose_activation(which, [&](auto kind) {
#pragma omp parallel for schedule(static)
        for (long r = 0; r < R; r++)
            for_vectors(F, [&](long c, auto n) {
                const T* row = x + r * width + c;
                Floats y = activated(load(row, n), kind, slope);
                if (gated) y *= load(row + F, n);
                store(drop(y, r * F + c, n), out + r * F + c, n);
            });
    });
}

// The gradient of `activate`: that of its output (R, F) -> its output once more, if wanted, the gradient of x, and its sum over rows.
// dx may be the same as grad if there is no gate.
template <class T>
void activate_gradient(const T* grad, const T* x, Drop drop, T* again, T* dx, float* sums, long R, long F,
                       int64_t which, float slope, bool gated) {
    const long width = gated ? 2 * F : F;
    choose_activation(which, [&](auto kind) {
        sum_blocks(R, width, sums, [&](long first, long last, float* here) {
            for (long r = first; r < last; r++)
                for_vectors(F, [&](long c, auto n) {
                    const T* row = x + r * width + c;
                    const long at = r * F + c;
                    const Slope y = with_derivative(load(row, n), kind, slope);
                    const Floats d = drop(load(grad + at, n), at, n);
                    Floats value = y.value, d_first = d * y.derivative;
                    if (gated) {
                        const Floats other = load(row + F, n), d_other = d * y.value;
                        value *= other, d_first *= other;
                        store(d_other, dx + r * width + F + c, n);
                        store(load(here + F + c, n) + d_other, here + F + c, n);
                    }
                    if (again) store(drop(value, at, n), again + at, n);
                    store(d_first, dx + r * width + c, n);
                    store(load(here + c, n) + d_first, here + c, n);
                });
        });
    });
}

// ---- residuals

// x + dropout(y + bias)
template <class T>
void add_dropped(const float* x, const T* y, const float* bias, Drop drop, float* out, long R, long C) {
#pragma omp parallel for schedule(static)
    for (long r = 0; r < R; r++)
        for_vectors(C, [&](long c, auto n) {
            const long at = r * C + c;
            store(load(x + at, n) + drop(load(y + at, n) + optional(bias, c, n), at, n), out + at, n);
        });
}

// The gradient of y in add_dropped, and its sum over rows, the gradient of the bias.
template <class S, class T>
void drop_gradient(const S* grad, Drop drop, T* out, float* sums, long R, long C) {
    sum_blocks(R, C, sums, [&](long first, long last, float* here) {
        for (long r = first; r < last; r++)
            for_vectors(C, [&](long c, auto n) {
                const long at = r * C + c;
                const Floats d = drop(load(grad + at, n), at, n);
                store(d, out + at, n);
                store(load(here + c, n) + d, here + c, n);
            });
    });
}

}  // namespace

#define POLYHEAD_TRAINING(T)                                                                                                     \
    void norm_##T(const float* x, const float* weight, const float* bias, float shift, T* out, float* stats, long R, long C,       \
                  float eps, bool centre) {                                                                                      \
        norm(x, {weight, bias, shift}, out, stats, R, C, eps, centre);                                                           \
    }                                                                                                                            \
    void norm_gradient_##T(const T* grad, const float* x, const float* stats, const float* weight, float shift,                  \
                           const float* residual, float* out, float* sums, long R, long C, bool centre) {                        \
        norm_gradient(grad, x, stats, {weight, nullptr, shift}, residual, out, sums, R, C, centre);                              \
    }                                                                                                                            \
    void activate_##T(const T* x, const uint8_t* bytes, int64_t threshold, float scale, T* out, long R,       \
                      long F, int64_t which, float slope, bool gated) {                                                          \
        activate(x, {bytes, threshold, scale}, out, R, F, which, slope, gated);                                            \
    }                                                                                                                            \
    void activate_gradient_##T(const T* grad, const T* x, const uint8_t* bytes, int64_t threshold,            \
                               float scale, T* again, T* dx, float* sums, long R, long F, int64_t which, float slope,            \
                               bool gated) {                                                                                     \
        activate_gradient(grad, x, {bytes, threshold, scale}, again, dx, sums, R, F, which, slope, gated);                 \
    }                                                                                                                            \
    void add_dropped_##T(const float* x, const T* y, const float* bias, const uint8_t* bytes, int64_t threshold, float scale,    \
                         float* out, long R, long C) {                                                                           \
        add_dropped(x, y, bias, {bytes, threshold, scale}, out, R, C);                                                           \
    }                                                                                                                            \
    void drop_gradient_##T(const float* grad, const uint8_t* bytes, int64_t threshold, float scale, T* out, float* sums, long R, \
                           long C) {                                                                                             \
        drop_gradient(grad, {bytes, threshold, scale}, out, sums, R, C);                                                         \
    }

using fp32 = float;
extern "C" {
POLYHEAD_TRAINING(fp32)
POLYHEAD_TRAINING(bf16)
}
#undef POLYHEAD_TRAINING
