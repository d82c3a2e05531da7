// Products of few rows with a large matrix, and attention of single queries: what decoding a token is made of.
//
// A token needs every weight once, so the weights lie in the order they are read: panels of 64 outputs, and in a panel 64
// outputs of one step after another, where a step is 4 bytes of the input: a float, or two bf16. A load of 16 weights serves
// every row of the batch, no sum runs across lanes, and one panel after another streams from memory. A row's sums are taken in
// the same order whatever the batch, so its results are the same to the last bit.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace {

using Floats = float __attribute__((vector_size(64)));
using Bits = uint32_t __attribute__((vector_size(64)));
using Halves = uint16_t __attribute__((vector_size(32)));
using bf16 = uint16_t;

constexpr long LANES = 16, WIDE = 4, PANEL = LANES * WIDE;
constexpr long ROWS = 6;     // of the input at once: 6 x 4 sums, 4 weights and an input fill 32 registers
constexpr long STEPS = 256;  // of a panel at once, where there are more rows: 64 KiB, which stay near
constexpr long CROWD = 8;    // queries on the same keys: for so many these are laid out in panels, too
constexpr long BATCH = 192;  // rows that go through all panels before the next ones: their inputs and sums stay near too

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
Floats load(const bf16* x) {
    Halves halves;
    std::memcpy(&halves, x, sizeof halves);
    return (Floats)(__builtin_convertvector(halves, Bits) << 16);
}
void store(Floats x, float* out) { std::memcpy(out, &x, sizeof x); }
void store(Floats x, bf16* out) {  // to the nearest, ties to even
    const Bits bits = (Bits)x, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Halves halves = __builtin_convertvector(x == x ? rounded : rounded * 0 + 0x7fc0, Halves);
    std::memcpy(out, &halves, sizeof halves);
}

Floats load(const float* x, long n) {
    Floats out = {};
    std::memcpy(&out, x, n * sizeof(float));
    return out;
}
template <class T>
void store(Floats x, T* out, long n) {
    if (n == LANES) return store(x, out);
    T all[LANES];
    store(x, all);
    std::memcpy(out, all, n * sizeof(T));
}

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

float total(Floats x) {
    x += __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    x += __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    x += __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    return x[0] + x[1];
}

// e^x for x <= 0: 2^n times a polynomial of what is left (Cephes, expf); below -87 it is 0, as for -inf
Floats exponential(Floats x) {
    const Floats n = x * 1.44269504f + 12582912.0f;  // the sum has no room for a fraction: its lowest bits are a whole number
    const Floats whole = n - 12582912.0f, r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    Floats y = r * 1.9875691500e-4f + 1.3981999507e-3f;
    y = ((((y * r + 8.3334519073e-3f) * r + 4.1665795894e-2f) * r + 1.6666665459e-1f) * r + 5.0000001201e-1f) * r * r + r + 1.0f;
    return x < -87.0f ? Floats{} : (Floats)((Bits)y + ((Bits)n << 23));
}

// The greatest number of a row, and the logarithm of the sum of e^(x - greatest).
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

// Where queries, keys and values lie; strides are in numbers, and 0 where a mask is the same for all.
struct Sizes {
    int64_t rows, share, heads, group, queries;  // rows of keys, of queries on each of them, heads of keys, of queries on each, T
    int64_t slots, block, pages;                 // slots that a row sees, in a page; pages of a row
    int64_t dim, v_dim, q_token;                 // widths of a head; from the queries of a token to those of the next
    int64_t k_head, k_page, k_slot, v_head, v_page, v_slot, seen_row, seen_head, seen_query;
    double scale;
};

// Scores of the slots that are seen -> their parts, up to the end of the row; who sees nothing gets 0.
void softmax(float* row, const bool* seen, long slots, long padded) {
    const float nothing = -std::numeric_limits<float>::infinity();
    float most = nothing;
    for (long s = 0; s < padded; s++) row[s] = s < slots && (!seen || seen[s]) ? row[s] : nothing;
    for (long s = 0; s < slots; s++) most = std::max(most, row[s]);
    Floats sum = {};
    for (long s = 0; s < padded; s += LANES) {
        const Floats x = most == nothing ? Floats{} : exponential(load(row + s) - most);
        store(x, row + s);
        sum += x;
    }
    const float part = most == nothing ? 0 : 1 / total(sum);
    for (long s = 0; s < padded; s++) row[s] *= part;
}

// Some heads of one row of keys: for each of their queries the softmax over the slots, and the mean of the values by it. A page
// holds all heads of its slots, and is read from end to end.
template <class T>
void heads(const T* q, const T* k, const T* v, T* out, const bool* seen, const int64_t* table, const Sizes& z, long b, long first, long last,
           float* room) {
    const long each = z.share * z.queries * z.group, n = (last - first) * each, padded = (z.slots + LANES - 1) / LANES * LANES;
    float *query = room, *sums = query + n * z.dim, *scores = sums + n * z.v_dim;
    const auto token = [&](long i) { return b * z.share * z.queries + i % each / z.group; };
    const auto of_head = [&](long i) { return (first + i / each) * z.group + i % z.group; };

    for (long i = 0; i < n; i++)
        for (long d = 0; d < z.dim; d += LANES)
            store(load(q + token(i) * z.q_token + of_head(i) * z.dim + d) * float(z.scale), query + i * z.dim + d);
    for (long start = 0; start < z.slots; start += z.block)
        for (long h = first; h < last; h++) {
            const T* key = k + table[b * z.pages + start / z.block] * z.k_page + h * z.k_head;
            const long from = (h - first) * each, end = std::min(z.slots, start + z.block);
            for (long s = start; s < end; s++, key += z.k_slot)
                for (long i = from; i < from + each; i++) {
                    Floats sum = {};
                    for (long d = 0; d < z.dim; d += LANES) sum += load(query + i * z.dim + d) * load(key + d);
                    scores[i * padded + s] = total(sum);
                }
        }
    for (long i = 0; i < n; i++) {
        const bool* mask = seen ? seen + b * z.seen_row + (first + i / each) * z.seen_head + i % each / z.group % z.queries * z.seen_query : nullptr;
        softmax(scores + i * padded, mask, z.slots, padded);
    }
    std::memset(sums, 0, n * z.v_dim * sizeof(float));
    for (long start = 0; start < z.slots; start += z.block)
        for (long h = first; h < last; h++) {
            const T* value = v + table[b * z.pages + start / z.block] * z.v_page + h * z.v_head;
            const long from = (h - first) * each, end = std::min(z.slots, start + z.block);
            for (long s = start; s < end; s++, value += z.v_slot)
                for (long i = from; i < from + each; i++)
                    for (long d = 0; d < z.v_dim; d += LANES)
                        store(load(sums + i * z.v_dim + d) + scores[i * padded + s] * load(value + d), sums + i * z.v_dim + d);
        }
    for (long i = 0; i < n; i++)
        for (long d = 0; d < z.v_dim; d += LANES)
            store(load(sums + i * z.v_dim + d), out + (token(i) * z.heads * z.group + of_head(i)) * z.v_dim + d);
}

// The same for one head with many queries: two products, of which the keys and the values are the matrices.
template <class T>
void crowd(const T* q, const T* k, const T* v, T* out, const bool* seen, const int64_t* table, const Sizes& z, long b, long h, Floats* room) {
    const long n = z.share * z.queries * z.group, padded = (z.slots + PANEL - 1) / PANEL * PANEL;
    float *panel = reinterpret_cast<float*>(room), *sums = panel + PANEL * std::max(z.dim, z.slots);
    float *query = sums + PANEL * ROWS, *scores = query + n * z.dim;
    const auto token = [&](long i) { return b * z.share * z.queries + i / z.group; };
    const auto page = [&](long s) { return table[b * z.pages + s / z.block]; };
    const auto times = [&](const float* x, long stride, long steps, auto take) {  // rows of x times the panel, row by row
        for (long i = 0; i < n; i += ROWS) {
            multiply<float>(std::min(ROWS, n - i), room, x + i * stride, stride, steps, sums, true, nullptr);
            for (long r = i; r < std::min(n, i + ROWS); r++) take(r, sums + (r - i) * PANEL);
        }
    };

    for (long i = 0; i < n; i++)
        for (long d = 0; d < z.dim; d += LANES)
            store(load(q + token(i) * z.q_token + (h * z.group + i % z.group) * z.dim + d) * float(z.scale), query + i * z.dim + d);
    for (long start = 0; start < z.slots; start += PANEL) {
        for (long s = start; s < std::min(z.slots, start + PANEL); s++) {
            const T* key = k + page(s) * z.k_page + h * z.k_head + s % z.block * z.k_slot;
            for (long d = 0; d < z.dim; d += LANES) {
                const Floats x = load(key + d);
                for (long j = 0; j < LANES; j++) panel[(d + j) * PANEL + s - start] = x[j];
            }
        }
        times(query, z.dim, z.dim, [&](long i, const float* sum) { std::memcpy(scores + i * padded + start, sum, PANEL * sizeof(float)); });
    }
    for (long i = 0; i < n; i++)
        softmax(scores + i * padded, seen ? seen + b * z.seen_row + h * z.seen_head + i / z.group % z.queries * z.seen_query : nullptr, z.slots, padded);
    for (long first = 0; first < z.v_dim; first += PANEL) {
        const long width = std::min(PANEL, z.v_dim - first);
        for (long s = 0; s < z.slots; s++)
            for (long d = 0; d < width; d += LANES)
                store(load(v + page(s) * z.v_page + h * z.v_head + s % z.block * z.v_slot + first + d), panel + s * PANEL + d);
        times(scores, padded, z.slots, [&](long i, const float* sum) {
            T* to = out + (token(i) * z.heads * z.group + h * z.group + i % z.group) * z.v_dim + first;
            for (long d = 0; d < width; d += LANES) store(load(sum + d), to + d);
        });
    }
}

template <class T>
void attend(const T* q, const T* k, const T* v, T* out, const bool* seen, const int64_t* table, const Sizes& z) {
    const long each = z.share * z.queries * z.group, padded = (z.slots + PANEL - 1) / PANEL * PANEL;
    const long parts = each < CROWD ? std::min(z.heads, (omp_get_max_threads() + z.rows - 1) / z.rows) : z.heads, some = (z.heads + parts - 1) / parts;
    const long shared = each < CROWD ? 0 : PANEL * (std::max(z.dim, z.slots) + ROWS);
#pragma omp parallel
    {
        std::vector<Floats> room((some * each * (z.dim + z.v_dim + padded) + shared) / LANES);
#pragma omp for schedule(static)
        for (long unit = 0; unit < z.rows * parts; unit++) {
            const long b = unit / parts, first = unit % parts * some, last = std::min(z.heads, first + some);
            if (each >= CROWD)
                crowd(q, k, v, out, seen, table, z, b, first, room.data());  // one head
            else if (first < last)
                heads(q, k, v, out, seen, table, z, b, first, last, reinterpret_cast<float*>(room.data()));
        }
    }
}

}  // namespace

extern "C" {

// Lay a matrix (N, steps), of 4 bytes a step, out in panels; what is missing of the last one is 0.
void pack(const float* weight, float* packed, long N, long steps) {
    for (long n = 0; n < N; n += PANEL)
        for (long k = 0; k < steps; k++)
            for (long j = 0; j < PANEL; j++) *packed++ = n + j < N ? weight[(n + j) * steps + k] : 0;
}

// Of every row (N, V): its greatest number, and the logarithm of the sum of e^(x - greatest) -> (N, 2)
void log_sums(const float* x, float* out, long N, long V) {
#pragma omp parallel for schedule(static)
    for (long n = 0; n < N; n++) log_sum(x + n * V, V, out + 2 * n);
}

void linear_fp32(const float* x, const float* packed, const float* bias, float* out, long M, long N, long steps) {
    linear(x, packed, bias, out, M, N, steps);
}
void linear_bf16(const bf16* x, const float* packed, const float* bias, bf16* out, long M, long N, long steps) {
    linear(x, packed, bias, out, M, N, steps);
}

// Queries (share * rows, T, H, dim) over keys and values in pages -> (share * rows, T, H, v_dim); table (rows, pages) says which
// pages are a row's.
void attend_fp32(const float* q, const float* k, const float* v, float* out, const bool* seen, const int64_t* table, const Sizes* z) {
    attend(q, k, v, out, seen, table, *z);
}
void attend_bf16(const bf16* q, const bf16* k, const bf16* v, bf16* out, const bool* seen, const int64_t* table, const Sizes* z) {
    attend(q, k, v, out, seen, table, *z);
}

}  // extern "C"
