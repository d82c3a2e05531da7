// Entry points of the kernels: products, attention, logsumexp, top-k, and a complete decoding step.
#include "step.hpp"

namespace {

// Maximum of a row, and the logarithm of the sum of e^(x - maximum).
void log_sum(const float* row, long width, float* out) {
    const Floats nothing = Floats{} - std::numeric_limits<float>::infinity();
    const auto at = [&](long i) {
        if (i + LANES <= width) return load(row + i);
        Floats x = nothing;
        std::memcpy(&x, row + i, (width - i) * sizeof(float));
        return x;
    };
    Floats highest = nothing, sum = {};
    for (long i = 0; i < width; i += LANES) highest = at(i) > highest ? at(i) : highest;
    float most = highest[0];
    for (long j = 1; j < LANES; j++) most = std::max(most, highest[j]);
    for (long i = 0; i < width; i += LANES) sum += exponential(at(i) - most);
    out[0] = most;
    out[1] = std::log(total(sum));
}

// The k largest numbers of a row in descending order, ties in column order, and their columns; banned columns are skipped. Few are
// larger than the smallest found so far, so hardly anything is moved.
void best(const float* row, long width, long k, const int64_t* banned, long bans, float* values, int64_t* ids) {
    for (long j = 0; j < k; j++) values[j] = -std::numeric_limits<float>::infinity(), ids[j] = j;
    const auto take = [&](long i) {
        if (!(row[i] > values[k - 1]) || std::find(banned, banned + bans, i) != banned + bans) return;
        long at = k - 1;
        for (; at > 0 && row[i] > values[at - 1]; at--) values[at] = values[at - 1], ids[at] = ids[at - 1];
        values[at] = row[i], ids[at] = i;
    };
    const long whole = width / PANEL * PANEL;
    for (long i = 0; i < whole; i += PANEL) {
        Floats most = Floats{} - std::numeric_limits<float>::infinity();  // not the first numbers: nothing is greater than NaN
        for (long j = 0; j < PANEL; j += LANES) most = load(row + i + j) > most ? load(row + i + j) : most;
        if (any(most > values[k - 1]))
            for (long j = 0; j < PANEL; j++) take(i + j);
    }
    for (long i = whole; i < width; i++) take(i);
}

}  // namespace

extern "C" {

// Pack a matrix (N, steps), of 4 bytes per step, in panels; the last one is padded with 0.
void pack(const float* weight, float* packed, long N, long steps) {
    for (long n = 0; n < N; n += PANEL)
        for (long k = 0; k < steps; k++)
            for (long j = 0; j < PANEL; j++) *packed++ = n + j < N ? weight[(n + j) * steps + k] : 0;
}

void pack_int4(const int8_t* weight, const int8_t* factors, float* packed, long N, long groups) {
    pack_fours(weight, factors, packed, N, groups);
}

// Maximum of every row (N, V), and the logarithm of the sum of e^(x - maximum) -> (N, 2)
void log_sums(const float* x, float* out, long N, long V) {
#pragma omp parallel for schedule(static)
    for (long n = 0; n < N; n++) log_sum(x + n * V, V, out + 2 * n);
}

// The k largest numbers of every row (N, V) and their columns -> (N, k) each
void best_of(const float* x, long N, long V, long k, const int64_t* banned, long bans, float* values, int64_t* ids) {
#pragma omp parallel for schedule(static)
    for (long n = 0; n < N; n++) best(x + n * V, V, k, banned, bans, values + n * k, ids + n * k);
}

void linear_fp32(const float* x, const float* packed, const float* bias, float* out, long M, long N, long steps) {
    linear(x, packed, bias, out, M, N, steps);
}
void linear_bf16(const bf16* x, const float* packed, const float* bias, bf16* out, long M, long N, long steps) {
    linear(x, packed, bias, out, M, N, steps);
}
void linear_int8_fp32(const float* x, const float* packed, const float* sizes, const int32_t* offsets, const float* bias, float* out,
                      long M, long N, long K) {
    linear_whole<int8_t>(x, packed, sizes, offsets, bias, out, M, N, K);
}
void linear_int8_bf16(const bf16* x, const float* packed, const float* sizes, const int32_t* offsets, const float* bias, bf16* out,
                      long M, long N, long K) {
    linear_whole<int8_t>(x, packed, sizes, offsets, bias, out, M, N, K);
}
void linear_int4_fp32(const float* x, const float* packed, const float* sizes, const int32_t* offsets, const float* bias, float* out,
                      long M, long N, long K) {
    linear_whole<int4>(x, packed, sizes, offsets, bias, out, M, N, K);
}
void linear_int4_bf16(const bf16* x, const float* packed, const float* sizes, const int32_t* offsets, const float* bias, bf16* out,
                      long M, long N, long K) {
    linear_whole<int4>(x, packed, sizes, offsets, bias, out, M, N, K);
}

// Queries (share * rows, T, H, dim) over keys and values in pages -> (share * rows, T, H, v_dim); table (rows, pages) contains
// the pages of each row.
void attend_fp32(const float* q, const float* k, const float* v, float* out, const bool* seen, const float* bias,
                 const int64_t* table, const Sizes* z) {
#pragma omp parallel
    attend(q, k, v, out, seen, bias, table, *z);
}
void attend_bf16(const bf16* q, const bf16* k, const bf16* v, bf16* out, const bool* seen, const float* bias,
                 const int64_t* table, const Sizes* z) {
#pragma omp parallel
    attend(q, k, v, out, seen, bias, table, *z);
}

// A decoding step: executes its instructions in order, on rows in a buffer of the size that they need.
void step_of(const Op* ops, long count, Call* call, float* room) { step(ops, count, *call, room); }

}  // extern "C"
