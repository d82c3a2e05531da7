// Products of few rows with a large matrix.
//
// A token needs every weight once, so the weights are stored in the order in which they are read: panels of 64 outputs, and in a
// panel 64 outputs of one step after another, where a step is 4 bytes of the input: a float, two bf16 or four int8. A load of 16
// weights serves every row of the batch, no sum runs across lanes, and panels stream from memory. The order of a row's sums does not
// depend on the batch, so its results are bit-identical.
#pragma once
#include <algorithm>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "int4.hpp"

namespace {

constexpr long STEPS = 256;  // of a panel at once with many rows: 64 KiB, which fit the cache
constexpr long BATCH = 192;  // rows processed with all panels before the next ones: their inputs and sums fit the cache too

// R rows of x, `stride` steps apart, times some steps of a panel, added to sums (R, 64). Prefetches one cache line of weights per
// step from `soon`, if it is not null; of one or two rows those of a later step, as memory is their limit.
template <class T, long R>
void multiply(const Floats* panel, const float* x, long stride, long steps, float* sums, bool first, const float* soon) {
    constexpr long SOME = at_once(R);
    for (long part = 0; part < WIDE; part += SOME, panel += SOME, sums += SOME * LANES, soon = nullptr) {
        Floats sum[R][SOME] = {};
        for (long r = 0; r < R && !first; r++) std::memcpy(sum[r], sums + r * PANEL, sizeof sum[r]);
        const Floats* weights = panel;
        for (long k = 0; k < steps; k++, weights += WIDE) {
            if (soon) __builtin_prefetch(soon + k * LINE, 0, 2);
            for (long j = 0; j < SOME && R <= 2; j += LINE / LANES) __builtin_prefetch(weights + j + SOON * WIDE, 0, 3);
            for (long r = 0; r < R; r++)
                for (long j = 0; j < SOME; j++) sum[r][j] = product(sum[r][j], weights[j], x[r * stride + k], T());
        }
        for (long r = 0; r < R; r++) std::memcpy(sums + r * PANEL, sum[r], sizeof sum[r]);
    }
}

template <class T>
void multiply(long rows, const Floats* panel, const float* x, long stride, long steps, float* sums, bool first, const float* soon) {
    switch (rows) {
        case 1: return multiply<T, 1>(panel, x, stride, steps, sums, first, soon);
        case 2: return multiply<T, 2>(panel, x, stride, steps, sums, first, soon);
        case 3: return multiply<T, 3>(panel, x, stride, steps, sums, first, soon);
        case 4: return multiply<T, 4>(panel, x, stride, steps, sums, first, soon);
        case 5: return multiply<T, 5>(panel, x, stride, steps, sums, first, soon);
        default: return multiply<T, 6>(panel, x, stride, steps, sums, first, soon);
    }
}

// Rows (M, steps) times a panel -> sums (M, 64); with `fetch` the next panel is prefetched.
template <class T>
void multiply_rows(const float* panel, const float* input, long M, long steps, float* sums, bool fetch) {
    const long chunk = M <= ROWS ? steps : STEPS;
    for (long k = 0; k < steps; k += chunk) {
        const long here = std::min(chunk, steps - k);
        for (long m = 0; m < M; m += ROWS) {
            const long quarter = m / ROWS;  // of the next panel: the first row groups prefetch one each
            const float* soon = fetch && quarter < PANEL / LINE ? panel + (k + here) * PANEL + quarter * here * LINE : nullptr;
            multiply<T>(std::min(ROWS, M - m), reinterpret_cast<const Floats*>(panel + k * PANEL), input + m * steps + k, steps, here,
                        sums + m * PANEL, k == 0, soon);
        }
    }
}

// Int8 where no instruction sums four products. Some vectors of a panel are multiplied with all rows, from the first cache, before the
// next ones. Bytes are widened once to pairs of 16 bits, two per step, of its even and its odd bytes. Inputs that are not negative, as
// after a ReLU, stay bytes: their products take three instructions in place of four.
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
constexpr bool WIDENED = true;
#else
constexpr bool WIDENED = false;
#endif
constexpr long SOME_VECTORS = at_once(ROWS);
constexpr long SOME_STEPS = 128;  // of these vectors at once: 16 KiB if widened

// Sums of the products of four bytes: of unsigned ones up to 127 with signed ones from -127, whose sums in pairs fit 16 bits.
[[maybe_unused]] Ints in_fours(Shorts x, Shorts y) {
#if defined(__AVX512BW__)
    return (Ints)_mm512_madd_epi16(_mm512_maddubs_epi16((__m512i)x, (__m512i)y), _mm512_set1_epi16(1));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return (Ints)_mm256_madd_epi16(_mm256_maddubs_epi16((__m256i)x, (__m256i)y), _mm256_set1_epi16(1));
#else
    return in_pairs((Shorts)((Bits)x & 0x00ff00ff), y << 8 >> 8) + in_pairs((Shorts)((Bits)x >> 8 & 0x00ff00ff), y >> 8);
#endif
}

// R rows of x, `stride` units apart, times weights, added to sums (R, 64). A unit is a pair of 16 bits or four bytes.
template <bool FOURS, long R>
void multiply_units(const Shorts* weights, const int32_t* x, long stride, long units, float* sums, bool first) {
    Ints sum[R][SOME_VECTORS] = {};
    for (long r = 0; r < R && !first; r++) std::memcpy(sum[r], sums + r * PANEL, sizeof sum[r]);
    for (long k = 0; k < units; k++, weights += SOME_VECTORS)
        for (long r = 0; r < R; r++) {
            const Shorts both = (Shorts)(Ints{} + x[r * stride + k]);
            for (long j = 0; j < SOME_VECTORS; j++) sum[r][j] += FOURS ? in_fours(both, weights[j]) : in_pairs(weights[j], both);
        }
    for (long r = 0; r < R; r++) std::memcpy(sums + r * PANEL, sum[r], sizeof sum[r]);
}

template <bool FOURS>
void multiply_units(long rows, const Shorts* weights, const int32_t* x, long stride, long units, float* sums, bool first) {
    switch (rows) {
        case 1: return multiply_units<FOURS, 1>(weights, x, stride, units, sums, first);
        case 2: return multiply_units<FOURS, 2>(weights, x, stride, units, sums, first);
        case 3: return multiply_units<FOURS, 3>(weights, x, stride, units, sums, first);
        case 4: return multiply_units<FOURS, 4>(weights, x, stride, units, sums, first);
        case 5: return multiply_units<FOURS, 5>(weights, x, stride, units, sums, first);
        default: return multiply_units<FOURS, 6>(weights, x, stride, units, sums, first);
    }
}

// Bytes of n steps, with 128 added, -> (n, 2) pairs; or, if none is negative, the bytes themselves (n,). Returns whether they are.
bool widen_signed(const float* input, long n, int32_t* out) {
    uint32_t all = 0x80808080u, four;
    for (long i = 0; i < n; i++) std::memcpy(&four, input + i, 4), all &= four;
    const bool fours = all == 0x80808080u;
    for (long i = 0; i < n; i++) {
        std::memcpy(&four, input + i, 4);
        if (fours) out[i] = int32_t(four ^ 0x80808080u);
        else out[2 * i] = int32_t(four & 0x00ff00ff), out[2 * i + 1] = int32_t(four >> 8 & 0x00ff00ff);
    }
    return fours;
}

// Rows from `widen_signed` times an int8 panel -> sums (M, 64). Prefetches the next panel.
template <bool FOURS>
void multiply_widened(const float* panel, const int32_t* input, long M, long steps, float* sums) {
    constexpr long EACH = FOURS ? 1 : 2;
    Shorts weights[2 * SOME_STEPS * SOME_VECTORS];
    for (long part = 0; part < PANEL; part += SOME_VECTORS * LANES) {
        Ints weight_sums[SOME_VECTORS] = {};
        for (long k = 0; k < steps; k += SOME_STEPS) {
            const long here = std::min(SOME_STEPS, steps - k);
            for (long i = 0; i < here; i++) {
                const float* step = panel + (k + i) * PANEL + part;
                __builtin_prefetch(step + steps * PANEL, 0, 2);
                for (long j = 0; j < SOME_VECTORS; j++) {
                    const Shorts bytes = (Shorts)load(step + j * LANES);
                    if (FOURS) weights[i * SOME_VECTORS + j] = bytes, weight_sums[j] += in_fours((Shorts)(Ints{} + 0x01010101), bytes);
                    else weights[2 * i * SOME_VECTORS + j] = bytes << 8 >> 8, weights[(2 * i + 1) * SOME_VECTORS + j] = bytes >> 8;
                }
            }
            for (long m = 0, groups = (M + ROWS - 1) / ROWS, rows; groups; m += rows, groups--) {  // of almost equal sizes
                rows = (M - m + groups - 1) / groups;
                multiply_units<FOURS>(rows, weights, input + EACH * (m * steps + k), EACH * steps, EACH * here, sums + m * PANEL + part, k == 0);
            }
        }
        for (long m = 0; FOURS && m < M; m++)  // as if 128 had been added
            for (long j = 0; j < SOME_VECTORS; j++) {
                float* sum = sums + m * PANEL + part + j * LANES;
                store((Floats)((Ints)load(sum) + 128 * weight_sums[j]), sum);
            }
    }
}

// Rows (M, steps) times the packed matrix (N, steps), run by all threads of the enclosing parallel region, without a barrier;
// finish(n, there) returns the function that processes outputs n to n + there of a row.
template <class T, class Finish>
void products(const float* input, const float* packed, long M, long N, long steps, Finish finish) {
    constexpr bool fours = std::is_same_v<T, int4>;
    using As = std::conditional_t<fours, int8_t, T>;  // the type in which a panel is multiplied
    const bool fetch = M > 2 * ROWS && !fours;  // with few rows memory is busy anyway, and the hardware prefetches
    const bool few = sizeof(As) == 1 && M <= ROWS;  // few int8 rows are faster with vectors than with tiles, and unpacking does not pay off
    std::vector<float> sums(std::min(M, BATCH) * PANEL);
    const std::unique_ptr<Floats[]> unpacked(fours && !few ? new Floats[WIDE * steps] : nullptr);
    const bool widened_rows = WIDENED && sizeof(As) == 1 && !few;  // few rows do not pay off the widened weights
    const std::unique_ptr<int32_t[]> widened(widened_rows ? new int32_t[2 * std::min(M, BATCH) * steps] : nullptr);
    for (long first = 0; first < M; first += BATCH, input += BATCH * steps) {
        const long rows = std::min(M - first, BATCH), tiles = (rows + TILE - 1) / TILE, high = (rows + tiles - 1) / tiles;
        std::optional<Tiles> registers;
        if (tiled<As>() && !few) registers.emplace(high, steps);
        const bool are_bytes = widened_rows && widen_signed(input, rows * steps, widened.get());
#pragma omp for schedule(static) nowait
        for (long n = 0; n < N; n += PANEL) {
            const float* panel = packed + n / PANEL * (fours ? steps / GROUP * GROUP_FLOATS : PANEL * steps);
            if (fours && !few) panel = unpack(panel, steps, reinterpret_cast<float*>(unpacked.get()));
            if (fours && few) multiply_fours(rows, panel, input, steps, sums.data());
            else if (registers)  // all tiles have the same height: the last one overlaps the rows of the one before
                for (long m = 0; m < rows; m += high) {
                    const long from = std::min(m, rows - high);
                    multiply_tiles<As>(panel, input + from * steps, steps, &sums[from * PANEL]);
                }
            else if (are_bytes) multiply_widened<true>(panel, widened.get(), rows, steps, sums.data());
            else if (widened_rows) multiply_widened<false>(panel, widened.get(), rows, steps, sums.data());
            else multiply_rows<As>(panel, input, rows, steps, sums.data(), fetch);
            for (long j = 0; j < std::min(PANEL, N - n); j += LANES) {
                const auto end = finish(n + j, std::min(LANES, N - n - j));
                for (long m = 0; m < rows; m++) end(first + m, load(&sums[m * PANEL + j]));
            }
        }
    }
}

// x (M, K) times the packed matrix (N, K) -> (M, N); steps are those of K
template <class T>
void linear(const T* x, const float* packed, const float* bias, T* out, long M, long N, long steps) {
#pragma omp parallel
    products<T>(reinterpret_cast<const float*>(x), packed, M, N, steps, [&](long n, long there) {
        const Floats more = bias ? load(bias + n, there) : Floats{};
        return [=](long m, Floats sum) { store(sum + more, out + m * N + n, there); };
    });
}

// Quantize a row of K numbers to integers from -127 to 127, rounded to nearest, with 128 added; returns the scale. The rest of a
// step is 0.
template <class T>
float rounded(const T* x, uint8_t* out, long K) {
    Floats highest = {}, strange = {};  // a non-finite number makes the scale, and so all outputs, NaN
    const auto at = [&](long i) { return i + LANES <= K ? load(x + i) : load(x + i, K - i); };
    for (long i = 0; i < K; i += LANES) {
        const Floats here = at(i), size = here < 0 ? -here : here;
        highest = size > highest ? size : highest;
        strange += here * 0;
    }
    float most = 0;
    for (long j = 0; j < LANES; j++) most = std::max(most, highest[j]);
    const float times = most > 0 ? 127 / most : 0;
    for (long i = 0; i < K; i += LANES) {
        const Floats whole = at(i) * times + 12582912.0f;  // the sum has no fraction bits: its lowest bits are an integer
        const Bytes bytes = __builtin_convertvector((Bits)whole - (0x4b400000u - 128), Bytes);
        if (i + LANES <= K) std::memcpy(out + i, &bytes, LANES);
        else std::memcpy(out + i, &bytes, (K - i + 3) / 4 * 4);
    }
    return most / 127 + total(strange);
}

// As linear, with integer weights (int8 or int4) times the scale of the output; offsets are 128 times the sums of weights.
template <class Whole, class T>
void linear_whole(const T* x, const float* packed, const float* sizes, const int32_t* offsets, const float* bias, T* out, long M, long N, long K) {
    const long few = std::is_same_v<Whole, int4> ? GROUP : 1, steps = (K + 4 * few - 1) / (4 * few) * few;
    std::vector<float> input(M * steps), units(M);
#pragma omp parallel for schedule(static) if (M > ROWS)
    for (long m = 0; m < M; m++) units[m] = rounded(x + m * K, reinterpret_cast<uint8_t*>(&input[m * steps]), K);
#pragma omp parallel
    products<Whole>(input.data(), packed, M, N, steps, [&](long n, long there) {
        const Floats size = load(sizes + n, there), more = bias ? load(bias + n, there) : Floats{};
        const Ints offset = (Ints)load(reinterpret_cast<const float*>(offsets) + n, there);
        return [=, &units](long m, Floats sum) {
            const Floats whole = __builtin_convertvector((Ints)sum - offset, Floats);
            store(whole * (size * units[m]) + more, out + m * N + n, there);
        };
    });
}

}  // namespace
