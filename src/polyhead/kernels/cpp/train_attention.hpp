// Attention of training: forward and backward pass of all queries of a row, in blocks that fit the cache.
//
// One unit of work is a key head of a row. Its keys and values are packed once, for all query heads that share them. The forward pass
// computes all visible scores of six queries, their softmax and the weighted sum of the values; it keeps only the logsumexp of each
// query. The backward pass computes the weights again from it (Dao et al., 2022, algorithm 4) in blocks of 64 keys and 192 queries.
// Products are of bf16 in pairs, summed in fp32, or of fp32. Blocks that the mask hides are not computed.
#pragma once
#include <omp.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "train_panels.hpp"

namespace {

struct Strides {
    int64_t row, token, head;  // in numbers; 0 for broadcast dimensions
};

// Sizes and strides of queries (B, T, H, D), keys and values (B, S, K, D) and their gradients; the features of a head are contiguous.
struct TrainSizes {
    int64_t rows, heads, group, queries, keys, dim, v_dim;  // B, key heads, query heads per key head, T, S, D, Dv
    Strides q, k, v, out, grad, dq, dk, dv, mask, bias;     // grad: of the output; mask and bias: of (B, H, T, S), heads of queries
    int64_t causal, rotary, interleaved;                    // rotary: number of rotated features; pairs (2j, 2j + 1), else (j, j + rotary / 2)
    Strides angle;                                          // of cos and sin
    double scale;
};

constexpr long QUERIES = 192;  // of a block of the backward pass, a multiple of ROWS
constexpr float LOG2_E = 1.44269504f, INFINITE = std::numeric_limits<float>::infinity();
constexpr long AHEAD = 8;  // tokens whose numbers are prefetched: strides are too long for the hardware

// Rotary angles of a token, (rotary / 2) each; null without.
struct Angles {
    const float *cos, *sin;
};

// Rotate the pairs of features, backwards if `sign` is -1.
void rotate(float* x, Angles angles, float sign, const TrainSizes& z) {
    const long half = z.rotary / 2;
    if (z.interleaved)
        for (long j = 0; j < half; j++) {
            const float a = x[2 * j], b = x[2 * j + 1], cos = angles.cos[j], sin = sign * angles.sin[j];
            x[2 * j] = a * cos - b * sin, x[2 * j + 1] = b * cos + a * sin;
        }
    else
        for (long j = 0; j < half; j++) {
            const float a = x[j], b = x[half + j], cos = angles.cos[j], sin = sign * angles.sin[j];
            x[j] = a * cos - b * sin, x[half + j] = b * cos + a * sin;
        }
}

// Number of elements up to the last true one.
long up_to_last(const bool* x, long n) {
#ifdef __GLIBC__
    const void* last = memrchr(x, 1, n);
    return last ? static_cast<const bool*>(last) - x + 1 : 0;
#else
    while (n && !x[n - 1]) n--;
    return n;
#endif
}

// Keys start to end that a query sees; of these only those where `seen` is true, unless it is null.
struct Visible {
    long start, end;
    const bool* seen;

    bool covers(long j) const { return !seen && j >= start && j + LANES <= end; }  // all keys of a vector from j
    Ints of_vector(long j) const {
        static constexpr int32_t LANE[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        Ints key;
        std::memcpy(&key, LANE, sizeof key);
        key += int(j);
        const Ints inside = (key >= int(start)) & (key < int(end));
        if (!seen) return inside;
        Bytes bytes = {};
        std::memcpy(&bytes, seen + j, std::max(0L, std::min(LANES, end - j)));
        return inside & (__builtin_convertvector(bytes, Ints) != 0);
    }
};

template <class T>
struct TrainTensors {
    const T *q, *k, *v, *out, *grad;
    T *dq, *dk, *dv;                // (of the forward pass: not used)
    float* log_sums;                // (B, H, T): of base 2
    const bool* mask;
    const float *bias, *cos, *sin;
    float *dq_sums, *dk_sums, *dv_sums;  // gradients summed over tokens, (B, H or K, D); null if not wanted
};

// The work on one key head of one row: b and h, with memory of the thread.
template <class T>
struct Unit {
    const TrainTensors<T>& x;
    const TrainSizes& z;
    long b, h;
    float* room;
    const long steps = z.dim / IN_STEP<T>, v_steps = z.v_dim / IN_STEP<T>;
    const long S = round_up(z.keys, PANEL), whole = round_up(z.keys, LANES), Q = round_up(z.queries, 2);  // with padding

    static long floats(const TrainSizes& z, bool backward) {
        const long S = round_up(z.keys, PANEL), Q = round_up(z.queries, 2), D = z.dim + z.v_dim;
        const long shared = 2 * S * D + S * z.dim + PANEL * D + 10 * Q + 1024;
        return shared + (backward ? 2 * S * D + 3 * Q * D + 4 * Q + 4 * QUERIES * PANEL + 2 * ROWS * PANEL : ROWS * (D + z.dim + 2 * S));
    }
    float* take(long floats) {
        float* start = room;
        room += round_up(floats, LANES);
        return start;
    }
    T* take_rows(long rows, long dim) { return reinterpret_cast<T*>(take(rows * dim / IN_STEP<T>)); }

    // Tokens start to start + n of a head, contiguous, rotated, with 0 in the rows after n.
    void copy_rows(const T* from, Strides of, long head, long start, long n, long padded, long dim, bool rotary, T* to) const {
        from += b * of.row + head * of.head + start * of.token;
        for (long i = 0; i < n; i++, from += of.token) {
            T* row = to + i * dim;
            if (i + AHEAD < n) prefetch(from + AHEAD * of.token, dim);
            if (!rotary || !x.cos) {
                for (long d = 0; d < dim; d += LANES) std::memcpy(row + d, from + d, LANES * sizeof(T));
                continue;
            }
            float wide[1024];
            for (long d = 0; d < dim; d += LANES) store(load(from + d), wide + d);
            rotate(wide, angles(start + i), 1, z);
            for (long d = 0; d < dim; d += LANES) store_rounded(load(wide + d), row + d);
        }
        std::memset(to + n * dim, 0, (padded - n) * dim * sizeof(T));
    }
    Angles angles(long token) const {
        const long at = b * z.angle.row + token * z.angle.token;
        return {x.cos + at, x.sin + at};
    }
    // What every query sees; the padding sees nothing.
    void find_visible(long head, Visible* visible) const {
        for (long i = 0; i < Q; i++) {
            Visible& of = visible[i] = {0, i >= z.queries ? 0 : z.causal ? std::min(i + 1, long(z.keys)) : long(z.keys), nullptr};
            if (!x.mask || i >= z.queries) continue;
            if (i && !z.causal && !z.mask.token) {
                of = visible[i - 1];
                continue;
            }
            const bool* seen = x.mask + b * z.mask.row + head * z.mask.head + i * z.mask.token;
            of.end = up_to_last(seen, of.end);
            const void* first = std::memchr(seen, 1, of.end);
            of.start = first ? static_cast<const bool*>(first) - seen : 0;
            if (std::memchr(seen + of.start, 0, of.end - of.start)) of.seen = seen;
        }
    }
    const float* bias_of(long head, long i) const {
        return x.bias && i < z.queries ? x.bias + b * z.bias.row + head * z.bias.head + i * z.bias.token : nullptr;
    }
    Floats load_bias(const float* bias, long j) const { return load(bias + j, std::max(0L, std::min(LANES, long(z.keys) - j))); }

    // Keys, rotated, as panels of 64 keys; with `pairs` also as one panel of features.
    void pack_keys(float* panels, float* pairs) {
        const T* rows = x.k + b * z.k.row + h * z.k.head;
        long stride = z.k.token;
        if (x.cos) {
            T* rotated = take_rows(S, z.dim);
            copy_rows(x.k, z.k, h, 0, z.keys, z.keys, z.dim, true, rotated);
            rows = rotated, stride = z.dim;
        }
        pack_panels(rows, stride, steps, panels);
        if (pairs) pair_up(rows, stride, z.keys, whole, z.dim, pairs);
    }
    void pack_panels(const T* rows, long stride, long steps, float* panels) const {
        for (long j = 0; j < z.keys; j += PANEL, rows += PANEL * stride, panels += PANEL * steps) {
            for (long i = j; i < std::min(j + PANEL, long(z.keys)); i++) prefetch(rows + (i - j) * stride, steps * IN_STEP<T>);
            pack_panel(reinterpret_cast<const char*>(rows), stride * sizeof(T), std::min(PANEL, z.keys - j), steps, panels);
        }
    }

    void forward() {
        const float factor = float(z.scale) * LOG2_E;
        float *keys = take(S * steps), *values = take(S * z.v_dim), *scores = take(ROWS * S), *weights = take(ROWS * S), *sums = take(ROWS * z.v_dim);
        T* query = take_rows(ROWS, z.dim);
        Visible* visible = reinterpret_cast<Visible*>(take(Q * sizeof(Visible) / 4));
        pack_keys(keys, nullptr);
        pair_up(x.v + b * z.v.row + h * z.v.head, z.v.token, z.keys, whole, z.v_dim, values);
        for (long head = h * z.group; head < (h + 1) * z.group; head++) {
            find_visible(head, visible);
            for (long i = 0; i < z.queries; i += ROWS) {
                const long n = std::min(ROWS, Q - i);
                const auto [least, most] = range_of(visible + i, n);
                const long first = least / LANES * LANES, last = round_up(most, LANES);
                copy_rows(x.q, z.q, head, i, std::min(n, z.queries - i), n, z.dim, true, query);
                for (long j = first / PANEL * PANEL; j < last; j += PANEL)
                    multiply_panel<T, false>(n, keys + j * steps, PANEL, reinterpret_cast<const float*>(query), steps, 1, steps, scores + j, S,
                                     (std::min(PANEL, last - j)) / LANES);
                float part[ROWS];
                for (long r = 0; r < n; r++)
                    part[r] = softmax(scores + r * S, weights + r * S, head, i + r, visible[i + r], first, last, factor);
                if (most)
                    multiply_panel<T, false>(n, values + first / IN_STEP<T> * z.v_dim, z.v_dim, weights + first / IN_STEP<T>, S, 1,
                                     (last - first) / IN_STEP<T>, sums, z.v_dim, z.v_dim / LANES);
                else std::memset(sums, 0, n * z.v_dim * sizeof(float));
                for (long r = 0; r < n && i + r < z.queries; r++) {
                    T* out = const_cast<T*>(x.out) + b * z.out.row + (i + r) * z.out.token + head * z.out.head;
                    for (long d = 0; d < z.v_dim; d += LANES) store_rounded(load(sums + r * z.v_dim + d) * part[r], out + d);
                }
            }
        }
    }

    // Smallest range of keys with all that some queries see; (0, 0) if they see nothing.
    static std::pair<long, long> range_of(const Visible* visible, long n) {
        long first = INT32_MAX, last = 0;
        for (long r = 0; r < n; r++)
            if (visible[r].start < visible[r].end) first = std::min(first, visible[r].start), last = std::max(last, visible[r].end);
        return {last ? first : 0, last};
    }

    // Weights of a query over keys first to last, not yet divided by their sum; returns 1 / sum, or 0 without visible keys.
    float softmax(float* scores, float* weights, long head, long i, const Visible& visible, long first, long last, float factor) {
        const float* bias = bias_of(head, i);
        Floats highest = Floats{} - INFINITE;
        for (long j = first; j < last; j += LANES) {
            Floats score = load(scores + j);
            if (bias) score += load_bias(bias, j) * float(1 / z.scale);
            const bool whole = visible.covers(j);
            if (!whole) score = visible.of_vector(j) ? score : Floats{} - INFINITE;
            if (!whole || bias) store(score, scores + j);
            highest = score > highest ? score : highest;
        }
        const float most = highest_of(highest), shift = most == -INFINITE ? 0 : most * factor;
        Floats sum = {};
        for (long j = first; j < last; j += LANES) {
            const Floats weight = power_of_2(load(scores + j) * factor - shift);
            store_rounded(weight, reinterpret_cast<T*>(weights) + j);
            sum += weight;
        }
        const float all = total(sum);
        if (i < z.queries) x.log_sums[(b * z.heads * z.group + head) * z.queries + i] = all > 0 ? shift + std::log2(all) : INFINITE;
        return all > 0 ? 1 / all : all;
    }
    static float highest_of(Floats x) {
#ifdef __AVX512F__
        return _mm512_reduce_max_ps((__m512)x);
#else
        float most = x[0];
        for (long l = 1; l < LANES; l++) most = std::max(most, x[l]);
        return most;
#endif
    }

    void backward() {
        float *keys = take(S * steps), *key_pairs = take(S * z.dim / IN_STEP<T>), *values = take(S * v_steps);
        float *dk = take(S * z.dim), *dv = take(S * z.v_dim), *dq = take(Q * z.dim);
        float *query_pairs = take(Q * steps), *grad_pairs = take(Q * v_steps), *log_sums = take(Q), *deltas = take(Q);
        T *queries = take_rows(Q, z.dim), *grads = take_rows(Q, z.v_dim);
        Visible* visible = reinterpret_cast<Visible*>(take(Q * sizeof(Visible) / 4));
        pack_keys(keys, key_pairs);
        pack_panels(x.v + b * z.v.row + h * z.v.head, z.v.token, v_steps, values);
        std::memset(dk, 0, std::min(S, z.keys + ROWS) * z.dim * sizeof(float));
        std::memset(dv, 0, std::min(S, z.keys + ROWS) * z.v_dim * sizeof(float));
        const float* after = room;
        for (long head = h * z.group; head < (h + 1) * z.group; head++) {
            room = const_cast<float*>(after);
            find_visible(head, visible);
            copy_rows(x.q, z.q, head, 0, z.queries, Q, z.dim, true, queries);
            copy_rows(x.grad, z.grad, head, 0, z.queries, Q, z.v_dim, false, grads);
            pair_up(queries, z.dim, Q, Q, z.dim, query_pairs);
            pair_up(grads, z.v_dim, Q, Q, z.v_dim, grad_pairs);
            for (long i = 0; i < Q; i++) {
                const T* out = x.out + b * z.out.row + i * z.out.token + head * z.out.head;
                if (i + AHEAD < z.queries) prefetch(out + AHEAD * z.out.token, z.v_dim);
                Floats sum = {};
                for (long d = 0; d < z.v_dim && i < z.queries; d += LANES) sum += load(out + d) * load(grads + i * z.v_dim + d);
                deltas[i] = total(sum);
                log_sums[i] = i < z.queries ? x.log_sums[(b * z.heads * z.group + head) * z.queries + i] : INFINITE;
            }
            std::memset(dq, 0, Q * z.dim * sizeof(float));
            Block block{*this, head, visible, queries, grads, keys, key_pairs, values, query_pairs, grad_pairs, log_sums, deltas, dq, dk, dv,
                        take(QUERIES * PANEL), take(QUERIES * PANEL), take(QUERIES * PANEL), take(ROWS * PANEL), take(ROWS * PANEL)};
            for (long j = 0; j < z.keys; j += PANEL)
                for (long i = 0; i < Q; i += QUERIES) block.backward(i, j);
            write(dq, z.queries, z.dim, x.dq, z.dq, head, float(z.scale), x.cos, x.dq_sums, z.heads * z.group);
        }
        write(dk, z.keys, z.dim, x.dk, z.dk, h, float(z.scale), x.cos, x.dk_sums, z.heads);
        write(dv, z.keys, z.v_dim, x.dv, z.dv, h, 1, false, x.dv_sums, z.heads);
    }

    // Gradients, rotated back, to their place; and their sums over tokens.
    void write(float* from, long n, long dim, T* to, Strides of, long head, float factor, bool rotary, float* sums, long heads) const {
        to += b * of.row + head * of.head;
        if (sums) std::memset(sums += (b * heads + head) * dim, 0, dim * sizeof(float));
        for (long i = 0; i < n; i++, from += dim, to += of.token) {
            if (i + AHEAD < n) prefetch(to + AHEAD * of.token, dim, true);
            if (rotary) rotate(from, angles(i), -1, z);
            for (long d = 0; d < dim; d += LANES) {
                const Floats grad = load(from + d) * factor;
                store_rounded(grad, to + d);
                if (sums) store(load(sums + d) + grad, sums + d);
            }
        }
    }

    // Gradients of 192 queries and 64 keys.
    struct Block {
        const Unit& unit;
        const long head;
        const Visible* visible;
        const T *queries, *grads;
        const float *keys, *key_pairs, *values, *query_pairs, *grad_pairs, *log_sums, *deltas;
        float *dq, *dk, *dv;
        float *weights, *dscores;  // panels: steps of queries, 64 keys
        float* rows;               // gradients of scores as rows of steps of keys; of fp32 those of `dscores`
        float *scores, *dweights;  // (ROWS, 64)

        void backward(long i, long j) {
            const TrainSizes& z = unit.z;
            const long n = std::min(QUERIES, unit.Q - i);
            long first[QUERIES / ROWS], last[QUERIES / ROWS];  // visible keys of a group of rows
            bool some = false;
            for (long g = 0; g * ROWS < n; g++) {
                std::tie(first[g], last[g]) = range_of(visible + i + g * ROWS, std::min(ROWS, n - g * ROWS));
                some |= first[g] < j + PANEL && last[g] > j;
            }
            if (!some) return;
            for (long g = 0; g * ROWS < n; g++)
                backward_rows(i, g * ROWS, std::min(ROWS, n - g * ROWS), j, std::max(0L, first[g] - j) / LANES,
                              std::min(PANEL, round_up(std::max(0L, last[g] - j), LANES)) / LANES);
            for (long key = j; key < std::min(j + PANEL, long(z.keys)); key += ROWS) {
                const long some_keys = std::min(ROWS, j + PANEL - key);
                long from = -1, to = 0;
                for (long g = 0; g * ROWS < n; g++)
                    if (first[g] < key + some_keys && last[g] > key) from = from < 0 ? g * ROWS : from, to = std::min(n, (g + 1) * ROWS);
                if (from < 0) continue;
                const long step = from / IN_STEP<T>, steps = (to - from) / IN_STEP<T>, at = (i + from) / IN_STEP<T>;
                multiply_panel<T, true>(some_keys, grad_pairs + at * z.v_dim, z.v_dim, weights + step * PANEL + key - j, 1, PANEL, steps,
                                 dv + key * z.v_dim, z.v_dim, z.v_dim / LANES);
                multiply_panel<T, true>(some_keys, query_pairs + at * z.dim, z.dim, dscores + step * PANEL + key - j, 1, PANEL, steps,
                                 dk + key * z.dim, z.dim, z.dim / LANES);
            }
        }

        // Rows r to r + n of the block, of which vectors from to to of the keys are visible somewhere.
        void backward_rows(long i, long r, long n, long j, long from, long to) {
            const TrainSizes& z = unit.z;
            for (long s = r / IN_STEP<T>; s < (r + n) / IN_STEP<T>; s++)
                for (float* panel : {weights + s * PANEL, dscores + s * PANEL}) {
                    if (from >= to) std::memset(panel, 0, PANEL * sizeof(float));
                    else std::memset(panel, 0, from * LANES * sizeof(float)), std::memset(panel + to * LANES, 0, (PANEL - to * LANES) * sizeof(float));
                }
            if (from >= to) return;
            const long column = from * LANES;
            multiply_panel<T, false>(n, keys + j * unit.steps + column, PANEL, reinterpret_cast<const float*>(queries) + (i + r) * unit.steps, unit.steps, 1,
                             unit.steps, scores + column, PANEL, to - from);
            multiply_panel<T, false>(n, values + j * unit.v_steps + column, PANEL, reinterpret_cast<const float*>(grads) + (i + r) * unit.v_steps,
                             unit.v_steps, 1, unit.v_steps, dweights + column, PANEL, to - from);
            for (long row = 0; row < n; row += IN_STEP<T>) differentiate(i + r + row, row, (r + row) / IN_STEP<T>, j, from, to);
            multiply_panel<T, true>(n, key_pairs + (j + column) / IN_STEP<T> * z.dim, z.dim, (sizeof(T) == 4 ? dscores : rows) + (r * PANEL + column) / IN_STEP<T>,
                             PANEL / IN_STEP<T>, 1, (to - from) * LANES / IN_STEP<T>, dq + (i + r) * z.dim, z.dim, z.dim / LANES);
        }

        // One step of queries: weights, and gradients of the scores.
        void differentiate(long i, long row, long step, long j, long from, long to) {
            const TrainSizes& z = unit.z;
            constexpr long N = IN_STEP<T>;
            const float factor = float(z.scale) * LOG2_E;
            const float* bias[N];
            for (long s = 0; s < N; s++) bias[s] = unit.bias_of(head, i + s);
            for (long c = from * LANES; c < to * LANES; c += LANES) {
                Floats weight[N], dscore[N];
                for (long s = 0; s < N; s++) {
                    Floats power = load(scores + (row + s) * PANEL + c) * factor - log_sums[i + s];
                    if (bias[s]) power += unit.load_bias(bias[s], j + c) * LOG2_E;
                    weight[s] = power_of_2(power);
                    if (!visible[i + s].covers(j + c)) weight[s] = visible[i + s].of_vector(j + c) ? weight[s] : Floats{};
                    dscore[s] = weight[s] * (load(dweights + (row + s) * PANEL + c) - deltas[i + s]);
                    if (N > 1) store_rounded(dscore[s], reinterpret_cast<T*>(rows) + (step * N + s) * PANEL + c);
                }
                if constexpr (N > 1) {
                    const Bits pair = pair_rows(weight[0], weight[1]), dpair = pair_rows(dscore[0], dscore[1]);
                    std::memcpy(weights + step * PANEL + c, &pair, sizeof pair);
                    std::memcpy(dscores + step * PANEL + c, &dpair, sizeof dpair);
                } else store(weight[0], weights + step * PANEL + c), store(dscore[0], dscores + step * PANEL + c);
            }
        }
    };
};

template <class T>
void attend_units(const TrainTensors<T>& x, const TrainSizes& z, bool backward) {
#pragma omp parallel
    {
        thread_local std::vector<Floats> memory;  // kept: pages of large blocks are new in every call
        const size_t vectors = size_t(Unit<T>::floats(z, backward)) / LANES + 1;
        if (memory.size() < vectors) memory.resize(vectors);
#pragma omp for schedule(dynamic)
        for (long n = 0; n < z.rows * z.heads; n++) {
            Unit<T> unit{x, z, n / z.heads, n % z.heads, reinterpret_cast<float*>(memory.data())};
            if (backward) unit.backward();
            else unit.forward();
        }
    }
}

}  // namespace

extern "C" {

// Attention of training, forward (writes out and log_sums) or backward (writes dq, dk and dv).
void train_attention_fp32(const TrainTensors<float>* x, const TrainSizes* z, long backward) { attend_units(*x, *z, backward); }
void train_attention_bf16(const TrainTensors<bf16>* x, const TrainSizes* z, long backward) { attend_units(*x, *z, backward); }

}  // extern "C"
