// Products of small matrices in the cache, of fp32 or of bf16 in pairs, summed in fp32; and how their factors are stored.
//
// A "step" of a product is 4 bytes of the numbers that it sums over: one fp32 or two bf16. A matrix is stored as rows of steps if it is
// the left factor, and as a panel, for each step the numbers of all outputs, if it is the right one.
#pragma once
#include <algorithm>

#include "dots.hpp"

namespace {

constexpr long MOST = LANES == 16 ? 4 : 2;  // vectors of outputs at once

template <class T>
constexpr long IN_STEP = 4 / sizeof(T);  // numbers in a step

long round_up(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }

// 2^x for x up to 126; 0 below -126, NaN of NaN. The polynomial is the least-squares fit of 2^r, |r| <= 1/2; its relative error is 2e-7.
Floats power_of_2(Floats x) {
#ifdef __AVX512F__
    x = (Floats)_mm512_max_ps(_mm512_set1_ps(-200), (__m512)x);  // the second one if either is NaN
    const Floats n = (Floats)_mm512_roundscale_ps((__m512)x, 8), r = x - n;
    const Floats y = ((((r * 1.3276472e-3f + 9.6755413e-3f) * r + 5.5507133e-2f) * r + 2.4022120e-1f) * r + 6.9314697e-1f) * r + 1.0f;
    return (Floats)_mm512_scalef_ps((__m512)y, (__m512)n);
#else
    return exponential(x * 0.693147181f);
#endif
}

// Bits of the nearest bf16, in the upper half.
[[maybe_unused]] Bits round_upper(Floats x) {
    const Bits bits = (Bits)x;
    return x == x ? (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u : bits * 0 + 0x7fc00000u;
}
// Numbers of two rows in pairs, the first one in the lower half.
[[maybe_unused]] Bits pair_rows(Floats first, Floats second) {
#ifdef __AVX512BF16__
    constexpr Halves order[2] = {{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23}, {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31}};
    __m512i places;
    std::memcpy(&places, order, sizeof places);
    return (Bits)_mm512_permutexvar_epi16(places, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
#else
    return round_upper(first) >> 16 | round_upper(second);
#endif
}
void store_rounded(Floats x, float* out) { store(x, out); }
void store_rounded(Floats x, bf16* out) {
#ifdef __AVX512BF16__
    const __m256bh halves = _mm512_cvtneps_pbh((__m512)x);
    std::memcpy(out, &halves, sizeof halves);
#else
    store(x, out);
#endif
}

// R rows of x times W vectors of a panel: sums (R, W), with ADD added to what is there. Element (r, k) of x is at r * row + k * step.
// Without the unrolling the sums would pass through the stack.
template <class T, bool ADD, long R, long W>
void multiply_tile(const float* panel, long width, const float* x, long row, long step, long steps, float* sums, long stride) {
    Floats sum[R][W];
#pragma GCC unroll 8
    for (long r = 0; r < R; r++)
#pragma GCC unroll 4
        for (long j = 0; j < W; j++) sum[r][j] = ADD ? load(sums + r * stride + j * LANES) : Floats{};
    for (long k = 0; k < steps; k++, panel += width, x += step) {
        Floats weights[W];
#pragma GCC unroll 4
        for (long j = 0; j < W; j++) weights[j] = load(panel + j * LANES);
#pragma GCC unroll 8
        for (long r = 0; r < R; r++) {
            float value;
            std::memcpy(&value, x + r * row, sizeof value);
#pragma GCC unroll 4
            for (long j = 0; j < W; j++) sum[r][j] = product(sum[r][j], weights[j], value, T());
        }
    }
#pragma GCC unroll 8
    for (long r = 0; r < R; r++)
#pragma GCC unroll 4
        for (long j = 0; j < W; j++) store(sum[r][j], sums + r * stride + j * LANES);
}

template <class T, bool ADD, long R>
void multiply_panel(const float* panel, long width, const float* x, long row, long step, long steps, float* sums, long stride, long vectors) {
    long j = 0;
    for (; j + MOST <= vectors; j += MOST) multiply_tile<T, ADD, R, MOST>(panel + j * LANES, width, x, row, step, steps, sums + j * LANES, stride);
    if (MOST > 2 && j + 2 <= vectors) multiply_tile<T, ADD, R, 2>(panel + j * LANES, width, x, row, step, steps, sums + j * LANES, stride), j += 2;
    if (j < vectors) multiply_tile<T, ADD, R, 1>(panel + j * LANES, width, x, row, step, steps, sums + j * LANES, stride);
}

// An even number of rows, up to ROWS, or 1.
template <class T, bool ADD>
void multiply_panel(long rows, const float* panel, long width, const float* x, long row, long step, long steps, float* sums, long stride,
                    long vectors) {
    if (rows == 6) return multiply_panel<T, ADD, 6>(panel, width, x, row, step, steps, sums, stride, vectors);
    if (rows == 4) return multiply_panel<T, ADD, 4>(panel, width, x, row, step, steps, sums, stride, vectors);
    if (rows == 2) return multiply_panel<T, ADD, 2>(panel, width, x, row, step, steps, sums, stride, vectors);
    multiply_panel<T, ADD, 1>(panel, width, x, row, step, steps, sums, stride, vectors);
}

// Transpose 4-byte numbers: rows (n, steps), `stride` bytes apart -> panel (steps, 64), 0 from n to the next multiple of 16.
void pack_panel(const char* rows, long stride, long n, long steps, float* panel) {
    for (long j = 0; j < n; j += 16)
        for (long k = 0; k < steps; k += 16) {
            const long there = std::min(16L, steps - k);
#ifdef __AVX512F__
            __m512i x[16], y[16];
            const __mmask16 some = __mmask16((1u << there) - 1);
            for (long i = 0; i < 16; i++)
                x[i] = j + i < n ? _mm512_maskz_loadu_epi32(some, rows + (j + i) * stride + 4 * k) : _mm512_setzero_si512();
            for (long i = 0; i < 16; i += 2) y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]), y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
            for (long i = 0; i < 16; i += 4)
                for (long h = 0; h < 2; h++)
                    x[i + 2 * h] = _mm512_unpacklo_epi64(y[i + h], y[i + 2 + h]), x[i + 2 * h + 1] = _mm512_unpackhi_epi64(y[i + h], y[i + 2 + h]);
            for (long i = 0; i < 4; i++)  // x[i], x[4 + i] ...: columns i of each four, of four rows
                for (long h = 0; h < 2; h++) {
                    const __m512i a = x[8 * h + i], b = x[8 * h + 4 + i];
                    y[4 * h + i] = _mm512_shuffle_i32x4(a, b, 0x88), y[8 + 4 * h + i] = _mm512_shuffle_i32x4(a, b, 0xdd);
                }
            for (long h = 0; h < 2; h++)
                for (long i = 0; i < 4; i++) {
                    const __m512i a = y[8 * h + i], b = y[8 * h + 4 + i];
                    x[4 * h + i] = _mm512_shuffle_i32x4(a, b, 0x88), x[8 + 4 * h + i] = _mm512_shuffle_i32x4(a, b, 0xdd);
                }
            for (long i = 0; i < there; i++) std::memcpy(panel + (k + i) * PANEL + j, &x[i], 64);
#else
            for (long i = 0; i < 16; i++)
                for (long s = 0; s < there; s++) {
                    float& to = panel[(k + s) * PANEL + j + i];
                    if (j + i < n) std::memcpy(&to, rows + (j + i) * stride + 4 * (k + s), 4);
                    else to = 0;
                }
#endif
        }
}

// Rows (n, dim) -> panel (steps of n, dim), 0 up to an even number of rows, `padded`: bf16 numbers of two adjacent rows in pairs.
template <class T>
void pair_up(const T* rows, long stride, long n, long padded, long dim, float* panel) {
    constexpr long N = IN_STEP<T>;
    for (long i = 0; i < padded; i += N, rows += N * stride)
        for (long d = 0; d < dim; d += LANES, panel += LANES) {
            const Floats first = i < n ? load(rows + d) : Floats{};
            if constexpr (N == 1) {
                store(first, panel);
            } else {
                const Floats second = i + 1 < n ? load(rows + stride + d) : Floats{};
                const Bits both = (Bits)first >> 16 | (Bits)second;
                std::memcpy(panel, &both, sizeof both);
            }
        }
}

template <class T>
void prefetch(const T* numbers, long n, bool write = false) {
    for (long d = 0; d < n; d += 64 / sizeof(T))
        if (write) __builtin_prefetch(numbers + d, 1);
        else __builtin_prefetch(numbers + d);
}

}  // namespace
