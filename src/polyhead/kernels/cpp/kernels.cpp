// Entry points of the kernels: products, attention, logsumexp, top-k, and a complete decoding step.
#include "step.hpp"
#include "train_adamw.hpp"
#include "train_attention.hpp"
#include "train_blocks.hpp"
#include "train_elementwise.hpp"
#include "train_loss.hpp"
#include "train_products.hpp"

extern "C" {

// Number of threads of the parallel regions that the calling thread starts.
void limit_threads(long n) { omp_set_num_threads(int(n)); }

// Pack a matrix (N, steps), of 4 bytes per step, in panels; the last one is padded with 0.
void pack(const float* weight, float* packed, long N, long steps) {
#pragma omp parallel for schedule(static)
    for (long n = 0; n < N; n += PANEL)
        for (long first = 0; first < steps; first += LINE)  // a cache line of each output at once
            for (long j = 0; j < PANEL; j++)
                for (long k = first; k < std::min(steps, first + LINE); k++)
                    packed[n * steps + k * PANEL + j] = n + j < N ? weight[(n + j) * steps + k] : 0;
}

void pack_int4(const int8_t* weight, const int8_t* factors, float* packed, long N, long groups) {
    pack_fours(weight, factors, packed, N, groups);
}

// Maximum of every row (N, V), and the logarithm of the sum of e^(x - maximum) -> (N, 2)
void log_sums(const float* x, float* out, long N, long V) {
#pragma omp parallel for schedule(static)
    for (long n = 0; n < N; n++) log_sum(x + n * V, V, out + 2 * n);
}

// Rows (N, K) as integers from -127 to 127, a scale each (the largest magnitude becomes 127), and the sums of the integers.
// A row with a number that is not finite is all 0.
void quantize_rows(const float* rows, long N, long K, int8_t* values, float* scales, int32_t* sums) {
#pragma omp parallel for schedule(static)
    for (long n = 0; n < N; n++) {
        const float* row = rows + n * K;
        uint32_t most = 0;  // as bits, in whose order NaN is above all numbers
        for (long k = 0; k < K; k++) {
            uint32_t bits;
            std::memcpy(&bits, row + k, 4);
            most = std::max(most, bits & 0x7fffffffu);
        }
        float scale;
        std::memcpy(&scale, &most, 4);
        scale /= 127;
        const bool usable = scale > 0 && scale < std::numeric_limits<float>::infinity();
        int32_t sum = 0;
        for (long k = 0; k < K; k++) {
            const float value = usable ? std::min(std::max(std::rint(row[k] / scale), -127.0f), 127.0f) : 0.0f;
            values[n * K + k] = int8_t(value);
            sum += int32_t(value);
        }
        scales[n] = scale, sums[n] = sum;
    }
}

// The k largest numbers of every row (N, V) and their columns -> (N, k) each
void best_of(const float* x, long N, long V, long k, const int64_t* banned, long bans, float* values, int64_t* ids) {
#pragma omp parallel for schedule(static)
    for (long n = 0; n < N; n++) best(x + n * V, V, k, banned, bans, values + n * k, ids + n * k);
}

// The k largest numbers of every row (N, V) as log-probabilities of the whole row, and their columns -> (N, k) each
void best_log_probs(const float* x, long N, long V, long k, const int64_t* banned, long bans, float* values, int64_t* ids) {
#pragma omp parallel for schedule(static)
    for (long n = 0; n < N; n++) {
        float sums[2];
        log_sum(x + n * V, V, sums);
        best(x + n * V, V, k, banned, bans, values + n * k, ids + n * k);
        for (long j = 0; j < k; j++) values[n * k + j] = values[n * k + j] - sums[0] - sums[1];
    }
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

// A decoding step, or several greedy ones: executes the instructions in order, on rows in a buffer of the size that they need.
void step_of(const Op* ops, long count, Call* call, float* room) { steps(ops, count, *call, room); }

}  // extern "C"
