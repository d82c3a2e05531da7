// Products of few rows with a large matrix.
//
// A token needs every weight once, so the weights lie in the order they are read: panels of 64 outputs, and in a panel 64
// outputs of one step after another, where a step is 4 bytes of the input: a float, or two bf16. A load of 16 weights serves
// every row of the batch, no sum runs across lanes, and one panel after another streams from memory. A row's sums are taken in
// the same order whatever the batch, so its results are the same to the last bit.
#pragma once
#include <algorithm>
#include <vector>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include "vectors.hpp"

namespace {

constexpr long WIDE = 4, PANEL = LANES * WIDE;
constexpr long ROWS = 6;     // of the input at once: 6 x 4 sums, 4 weights and an input fill 32 registers
constexpr long STEPS = 256;  // of a panel at once, where there are more rows: 64 KiB, which stay near
constexpr long BATCH = 192;  // rows that go through all panels before the next ones: their inputs and sums stay near too

// sum + weights * input, of one step
Floats product(Floats sum, Floats w, float x, float) { return sum + w * x; }
Floats product(Floats sum, Floats w, float x, bf16) {
#ifdef __AVX512BF16__
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)_mm512_set1_ps(x));
#else
    uint32_t pair;
    std::memcpy(&pair, &x, 4);
    Bits bits = (Bits)w;
    return sum + (Floats)(bits << 16) * wide(bf16(pair)) + (Floats)(bits & 0xffff0000u) * wide(bf16(pair >> 16));
#endif
}

// R rows of x, `stride` steps apart, times some steps of a panel, added to sums (R, 64). Meanwhile as many weights as there are
// steps come nearer from where `soon` points, if it does.
template <class T, long R>
void multiply(const Floats* panel, const float* x, long stride, long steps, float* sums, bool first, const Floats* soon) {
    Floats sum[R][WIDE] = {};
    if (!first) std::memcpy(sum, sums, sizeof sum);
    for (long k = 0; k < steps; k++, panel += WIDE) {
        if (soon) __builtin_prefetch(soon + k, 0, 2);
        for (long r = 0; r < R; r++)
            for (long j = 0; j < WIDE; j++) sum[r][j] = product(sum[r][j], panel[j], x[r * stride + k], T());
    }
    std::memcpy(sums, sum, sizeof sum);
}

template <class T>
void multiply(long rows, const Floats* panel, const float* x, long stride, long steps, float* sums, bool first, const Floats* soon) {
    switch (rows) {
        case 1: return multiply<T, 1>(panel, x, stride, steps, sums, first, soon);
        case 2: return multiply<T, 2>(panel, x, stride, steps, sums, first, soon);
        case 3: return multiply<T, 3>(panel, x, stride, steps, sums, first, soon);
        case 4: return multiply<T, 4>(panel, x, stride, steps, sums, first, soon);
        case 5: return multiply<T, 5>(panel, x, stride, steps, sums, first, soon);
        default: return multiply<T, 6>(panel, x, stride, steps, sums, first, soon);
    }
}

// x (M, K) times the packed matrix (N, K) -> (M, N); steps are those of K
template <class T>
void linear(const T* x, const float* packed, const float* bias, T* out, long M, long N, long steps) {
    const float* input = reinterpret_cast<const float*>(x);
    const long chunk = M <= ROWS ? steps : STEPS;
    const bool fetch = M > 2 * ROWS;  // with few rows memory is busy anyway, and knows by itself what comes next
#pragma omp parallel
    {
        std::vector<float> sums(std::min(M, BATCH) * PANEL);
        for (long first = 0; first < M; first += BATCH) {
            const long last = std::min(M, first + BATCH);
#pragma omp for schedule(static) nowait
            for (long n = 0; n < N; n += PANEL) {
                const Floats* panel = reinterpret_cast<const Floats*>(packed + n * steps);
                for (long k = 0; k < steps; k += chunk) {
                    const long here = std::min(chunk, steps - k);
                    for (long m = first; m < last; m += ROWS) {
                        const long quarter = m / ROWS;  // of what comes next: the first rows fetch one each
                        const Floats* soon = fetch && quarter < WIDE ? panel + (k + here) * WIDE + quarter * here : nullptr;
                        multiply<T>(std::min(ROWS, last - m), panel + k * WIDE, input + m * steps + k, steps, here,
                                    sums.data() + (m - first) * PANEL, k == 0, soon);
                    }
                }
                for (long j = 0; j < std::min(PANEL, N - n); j += LANES) {
                    const long there = std::min(LANES, N - n - j);
                    const Floats more = bias ? load(bias + n + j, there) : Floats{};
                    for (long m = first; m < last; m++) store(load(&sums[(m - first) * PANEL + j]) + more, out + m * N + n + j, there);
                }
            }
        }
    }
}

}  // namespace
