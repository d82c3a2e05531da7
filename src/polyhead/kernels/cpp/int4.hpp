// Int4 weights, dequantized to int8 when they are multiplied.
//
// 32 inputs of an output share an integer group scale by which its weights, from -8 to 7, are multiplied. The sums of products are
// exactly those of int8 weights, whatever the order, with half of the bytes read from memory. For every 8 steps a panel contains 4
// steps of bytes, whose lower halves are the first 4 steps and whose upper halves the other 4, and then the scales of the 64 outputs.
#pragma once
#include "dots.hpp"

namespace {

struct int4 {};
constexpr long GROUP = 8, GROUP_FLOATS = GROUP / 2 * PANEL + PANEL / 4;  // steps that share a scale; size in floats of the steps and the scales

using Factors = int8_t __attribute__((vector_size(LANES)));
Ints factors(const float* group, long j) {  // scales of output vector j
    const auto* few = reinterpret_cast<const int8_t*>(group + GROUP / 2 * PANEL) + j * LANES;
#if defined(__AVX512F__)  // GCC converts numbers of 8 bits one by one
    return (Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(few)));
#elif defined(__AVX2__)
    return (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(few)));
#else
    Factors all;
    std::memcpy(&all, few, LANES);
    return __builtin_convertvector(all, Ints);
#endif
}

// 16 times the weights of a step: signed, and without a shift of bytes, which does not exist
Floats lower(Floats both) { return (Floats)((Bits)both << 4 & 0xf0f0f0f0u); }
Floats upper(Floats both) { return (Floats)((Bits)both & 0xf0f0f0f0u); }

// R rows of x, `steps` apart, times a panel -> sums (R, 64)
template <long R>
void multiply_fours(const float* panel, const float* x, long steps, float* sums) {
    constexpr long SOME = at_once(2 * R);  // the sums of a group and of all groups are in registers
    for (long part = 0; part < WIDE; part += SOME) {
        Ints all[R][SOME] = {};
        for (long g = 0; g < steps; g += GROUP) {
            const float* group = panel + g / GROUP * GROUP_FLOATS + part * LANES;
            Floats sum[R][SOME] = {};
            for (long k = 0; k < GROUP / 2; k++)
                for (long j = 0; j < SOME; j++) {
                    const Floats both = load(group + k * PANEL + j * LANES), low = lower(both), high = upper(both);
                    if (R <= 2 && j * LANES % LINE == 0) __builtin_prefetch(group + (k + SOON) * PANEL + j * LANES, 0, 3);
                    for (long r = 0; r < R; r++) {
                        sum[r][j] = product(sum[r][j], low, x[r * steps + g + k], int8_t());
                        sum[r][j] = product(sum[r][j], high, x[r * steps + g + k + GROUP / 2], int8_t());
                    }
                }
            for (long j = 0; j < SOME; j++) {
                const Ints factor = factors(group - part * LANES, part + j);
                for (long r = 0; r < R; r++) all[r][j] += ((Ints)sum[r][j] >> 4) * factor;
            }
        }
        for (long r = 0; r < R; r++)
            for (long j = 0; j < SOME; j++) store((Floats)all[r][j], sums + r * PANEL + (part + j) * LANES);
    }
}

void multiply_fours(long rows, const float* panel, const float* x, long steps, float* sums) {
    switch (rows) {
        case 1: return multiply_fours<1>(panel, x, steps, sums);
        case 2: return multiply_fours<2>(panel, x, steps, sums);
        case 3: return multiply_fours<3>(panel, x, steps, sums);
        case 4: return multiply_fours<4>(panel, x, steps, sums);
        case 5: return multiply_fours<5>(panel, x, steps, sums);
        default: return multiply_fours<6>(panel, x, steps, sums);
    }
}

// 16 times the weights of a step, times a scale in each half of a lane -> the int8 weights
Floats eights(Floats weights, Shorts factor) {
    const Shorts even = ((Shorts)weights << 8 >> 12) * factor, odd = ((Shorts)weights >> 12) * factor;
    return (Floats)((even & 0xff) | (odd << 8));
}

// Dequantize a panel to an int8 panel at `out`.
const float* unpack(const float* panel, long steps, float* out) {
    for (long g = 0; g < steps / GROUP; g++, panel += GROUP_FLOATS)
        for (long j = 0; j < WIDE; j++) {
            const Bits factor = (Bits)factors(panel, j);
            const Shorts twice = (Shorts)((factor & 0xffff) | factor << 16);
            for (long k = 0; k < GROUP / 2; k++) {
                const Floats both = load(panel + k * PANEL + j * LANES);
                float* at = out + (g * GROUP + k) * PANEL + j * LANES;
                store(eights(lower(both), twice), at);
                store(eights(upper(both), twice), at + GROUP / 2 * PANEL);
            }
        }
    return out;
}

// Pack weights (N, 8 * groups) of 4 bytes per step, from -8 to 7, and the scales (N, groups) of each 8 steps in panels; the last
// one is padded with 0.
void pack_fours(const int8_t* weight, const int8_t* factor, float* packed, long N, long groups) {
    auto* out = reinterpret_cast<int8_t*>(packed);
    const long row = groups * GROUP * 4;
    for (long n = 0; n < N; n += PANEL)
        for (long g = 0; g < groups; g++) {
            for (long k = 0; k < GROUP / 2; k++)
                for (long j = 0; j < PANEL; j++)
                    for (long i = 0; i < 4; i++) {
                        const int8_t* at = weight + (n + j) * row + (g * GROUP + k) * 4 + i;
                        *out++ = n + j < N ? int8_t((at[0] & 15) | at[GROUP / 2 * 4] * 16) : 0;
                    }
            for (long j = 0; j < PANEL; j++) *out++ = n + j < N ? factor[(n + j) * groups + g] : 0;
        }
}

}  // namespace
