// Vectors of the register width of the CPU, in fp32 whatever the storage type.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace {

// a vector wider than a register would be in memory, and so would the sums
#if defined(__AVX512F__)
constexpr long LANES = 16, REGISTERS = 32;
#elif defined(__AVX2__)
constexpr long LANES = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr long LANES = 4, REGISTERS = 32;
#else
constexpr long LANES = 4, REGISTERS = 16;
#endif

using Floats = float __attribute__((vector_size(4 * LANES)));
using Bits = uint32_t __attribute__((vector_size(4 * LANES)));
using Ints = int32_t __attribute__((vector_size(4 * LANES)));
using Shorts = int16_t __attribute__((vector_size(4 * LANES)));
using Bytes = uint8_t __attribute__((vector_size(LANES)));
using Halves = uint16_t __attribute__((vector_size(2 * LANES)));
using bf16 = uint16_t;

[[maybe_unused]] float wide(bf16 x) {
    uint32_t bits = uint32_t(x) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}
Floats load(const float* x) {
    Floats out;
    std::memcpy(&out, x, sizeof out);
    return out;
}
// Compilers convert vectors in halves and by the piece, so the conversions that are frequent are written out.
Floats load(const bf16* x) {
#if defined(__AVX512F__)
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))), 16);
#else
    Halves halves;
    std::memcpy(&halves, x, sizeof halves);
    return (Floats)(__builtin_convertvector(halves, Bits) << 16);
#endif
}
Ints load_bytes(const uint8_t* x) {
#if defined(__AVX512F__)
    return (Ints)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
#else
    Bytes bytes;
    std::memcpy(&bytes, x, sizeof bytes);
    return __builtin_convertvector(bytes, Ints);
#endif
}
void store(Floats x, float* out) { std::memcpy(out, &x, sizeof x); }
void store(Floats x, bf16* out) {  // to the nearest, ties to even
#if defined(__AVX512BF16__)
    const __m256bh halves = _mm512_cvtneps_pbh((__m512)x);
#else
    const Bits bits = (Bits)x, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Halves halves = __builtin_convertvector(x == x ? rounded : rounded * 0 + 0x7fc0, Halves);
#endif
    std::memcpy(out, &halves, sizeof halves);
}

template <class T>
Floats load(const T* x, long n) {
    if (n == LANES) return load(x);
    T all[LANES] = {};
    std::memcpy(all, x, n * sizeof(T));
    return load(all);
}
template <class T>
void store(Floats x, T* out, long n) {
    if (n == LANES) return store(x, out);
    T all[LANES];
    store(x, all);
    std::memcpy(out, all, n * sizeof(T));
}

#if !defined(__clang__) && __GNUC__ < 12  // which use another name
#define __builtin_shufflevector(x, y, ...) __builtin_shuffle(x, y, Ints{__VA_ARGS__})
#endif

float total(Floats x) {
#if defined(__AVX512F__)
    x += __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    x += __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    x += __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
#elif defined(__AVX2__)
    x += __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3);
    x += __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5);
#else
    x += __builtin_shufflevector(x, x, 2, 3, 0, 1);
#endif
    return x[0] + x[1];
}

// The totals of four vectors, in the order of their adds whatever the vectors are.
[[maybe_unused]] void totals(Floats a, Floats b, Floats c, Floats d, float* out) {
#if defined(__AVX512F__)
    const auto low = [](Floats x, Floats y) { return (Floats)_mm512_unpacklo_ps((__m512)x, (__m512)y); };
    const auto high = [](Floats x, Floats y) { return (Floats)_mm512_unpackhi_ps((__m512)x, (__m512)y); };
    const __m512d ab = (__m512d)(low(a, b) + high(a, b)), cd = (__m512d)(low(c, d) + high(c, d));
    Floats x = (Floats)_mm512_unpacklo_pd(ab, cd) + (Floats)_mm512_unpackhi_pd(ab, cd);  // a, b, c and d in each quarter
    x += __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    x += __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    std::memcpy(out, &x, 4 * sizeof(float));
#else
    out[0] = total(a), out[1] = total(b), out[2] = total(c), out[3] = total(d);
#endif
}

// Whether any element is not 0; of a comparison, whether it is true anywhere.
bool any(Ints x) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)x, (__m512i)x);
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)x, (__m256i)x);
#else
    return x[0] | x[1] | x[2] | x[3];
#endif
}

// Sums of the products of two adjacent numbers.
[[maybe_unused]] Ints in_pairs(Shorts x, Shorts y) {
#if defined(__AVX512BW__)
    return (Ints)_mm512_madd_epi16((__m512i)x, (__m512i)y);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return (Ints)_mm256_madd_epi16((__m256i)x, (__m256i)y);
#elif defined(__SSE2__) && !defined(__AVX2__)
    return (Ints)_mm_madd_epi16((__m128i)x, (__m128i)y);
#else
    return (((Ints)x << 16) >> 16) * (((Ints)y << 16) >> 16) + ((Ints)x >> 16) * ((Ints)y >> 16);
#endif
}

// e^x for x <= 0: 2^n times a polynomial of the remainder (Cephes, expf); below -87 it is 0, as for -inf
Floats exponential(Floats x) {
    const Floats n = x * 1.44269504f + 12582912.0f;  // the sum has no fraction bits: its lowest bits are an integer
    const Floats whole = n - 12582912.0f, r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    Floats y = r * 1.9875691500e-4f + 1.3981999507e-3f;
    y = ((((y * r + 8.3334519073e-3f) * r + 4.1665795894e-2f) * r + 1.6666665459e-1f) * r + 5.0000001201e-1f) * r * r + r + 1.0f;
    return x < -87.0f ? Floats{} : (Floats)((Bits)y + ((Bits)n << 23));
}

}  // namespace
