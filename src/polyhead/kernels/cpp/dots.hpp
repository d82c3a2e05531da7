// Products of one step, accumulated in registers.
#pragma once
#include "tiles.hpp"

namespace {

constexpr long WIDE = PANEL / LANES;  // vectors of a panel's outputs
constexpr long LINE = 16;             // numbers of a cache line
constexpr long SOON = 16;             // steps by which weights are prefetched before they are needed
constexpr long ROWS = 6;              // maximum number of input rows at once
constexpr long SUMS = REGISTERS / 4 * 3;  // sums in registers: the rest is for weights and inputs

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
Floats product(Floats sum, Floats w, float x, int8_t) {  // the bits are int8; the input is uint8, 1 to 255
    uint32_t four;
    std::memcpy(&four, &x, 4);
#ifdef __AVX512VNNI__
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(_mm512_set1_epi32(int(four))), "v"(w));  // with GCC's intrinsic it copies the sums
    return sum;
#else
    // in pairs of 16 bits, whose products and sums are exact
    const Shorts even = (Shorts)w << 8 >> 8, odd = (Shorts)w >> 8;
    const auto both = [&](uint32_t x) { return (Shorts)(Ints{} + int(x & 0x00ff00ff)); };
    return (Floats)((Ints)sum + in_pairs(even, both(four)) + in_pairs(odd, both(four >> 8)));
#endif
}

// Number of vectors of a panel that R rows are multiplied with at once: a power of 2 such that the sums fit in registers.
constexpr long at_once(long R) {
    long some = WIDE;
    while (some > 1 && some * R > SUMS) some /= 2;
    return some;
}

}  // namespace
