// A decoding step of all layers: a list of instructions on rows of numbers, executed in order by all threads together, with only
// a barrier between two of them. With the embedding and the choice of a token it may be repeated: greedy steps in one call.
#pragma once
#include <cmath>

#include "attention.hpp"
#include "barrier.hpp"
#include "logits.hpp"

namespace {

enum What : int64_t { EMBED, NORM, ROUND, ANGLES, HEADS, PRODUCT, ATTEND, CHOOSE };  // those up to HEADS process each row separately
enum Norm : int64_t { LAYER, RMS };
enum Kept : int64_t { FP32, BF16, INT8, INT4 };
enum Joins : int64_t { ALONE, ADDED, MULTIPLIED };

// Rows are in one buffer, those of one kind together; offsets are in numbers per row.
struct Op {
    int64_t what, in, out, with;      // offsets of the rows that are read, written, and added, multiplied or rotated by
    int64_t width, inner;             // numbers per row that is written, and per row that is read
    int64_t way;                      // a Norm, the precision of weights, or whether rotary pairs are interleaved
    int64_t activation, joins;        // of a product; of HEADS: whether all heads of a kind are normed as one
    int64_t heads, kv_heads, dim, v_dim;
    int64_t layer, source, mask;      // layer of the keys and values; source or self; index of the mask (that of the bias: with)
    const void *weight, *bias, *sizes, *offsets;
    double number, bound;             // eps, scale, gain or slope; a softcap
};

struct Call {
    int64_t rows, bf16;               // number of tokens; whether keys and values are bf16
    const int64_t *pos, *write;       // position of each token, and its slot in the first head
    void* const* kept[2];             // keys and values of each layer: self, source; null: those of the rows only
    const int64_t* table[2];
    const bool* const* seen[2];
    const float* const* bias[2];
    Sizes sizes[2];
    int64_t strange;                  // output: whether a key or value was not finite
    int64_t steps;                    // maximum number of greedy steps, each with one token of a row; 0: one step of embedded tokens
    int64_t *tokens;                  // (steps + 1, rows): the first row is input, the others are output
    float *log_probs;                 // output (steps, rows): log-probabilities of the tokens
    const void* positions;            // table that is added to the embeddings, or null
    const int64_t *banned, *ends;     // tokens that are not chosen, and those after which the steps end
    int64_t n_banned, n_ends;
    int64_t done, steps_end;          // output: number of valid steps; whether no more follow

    long at(long m, long t) const { return steps ? m * steps + t : m; }  // place of the token of row m at step t
};

// Sums over a row of at(i, there), whose numbers from `there` on do not count.
template <class F>
float sum_of(long n, F at) {
    const long whole = n / LANES * LANES;
    Floats sum = {};
    for (long i = 0; i < whole; i += LANES) sum += at(i, LANES);
    if (whole < n) {
        Floats rest = at(whole, n - whole);
        for (long j = n - whole; j < LANES; j++) rest[j] = 0;
        sum += rest;
    }
    return total(sum);
}

void norm(const float* x, float* out, const float* weight, const float* bias, const float* added, long n, int64_t way, double eps) {
    const float mean = way == RMS ? 0 : sum_of(n, [&](long i, long there) { return load(x + i, there); }) / n;
    const float square = sum_of(n, [&](long i, long there) {
        const Floats off = load(x + i, there) - mean;
        return off * off;
    });
    const float scale = 1 / std::sqrt(square / n + float(eps));
    for (long i = 0; i < n; i += LANES) {
        const long there = std::min(LANES, n - i);
        Floats y = (load(x + i, there) - mean) * scale * load(weight + i, there);
        if (bias) y += load(bias + i, there);
        if (added) y += load(added + i, there);
        store(y, out + i, there);
    }
}

// Rotate the pairs of a head by angles: cos and sin (half,) each.
void turn(float* __restrict x, const float* __restrict cos, const float* __restrict sin, long half, bool interleaved) {
    const long step = interleaved ? 2 : 1, apart = interleaved ? 1 : half;
    for (long j = 0; j < half; j++) {
        const float a = x[j * step], b = x[j * step + apart];
        x[j * step] = a * cos[j] - b * sin[j];
        x[j * step + apart] = b * cos[j] + a * sin[j];
    }
}

template <class T>
void keep(const float* x, T* to, long n, Floats& strange) {
    for (long d = 0; d < n; d += LANES) {
        const Floats y = load(x + d);
        strange += y * 0;
        store(y, to + d);
    }
}

// Norm and rotate the queries and keys of a token in place; write keys and values to the cache.
template <class T>
void heads_of(float* x, const float* angles, const Op& op, Call& call, long m, long t) {
    const Sizes& z = call.sizes[0];
    const long half = op.inner / 2;
    const auto ready = [&](float* y, long heads, const void* weight) {
        const long n = heads * op.dim, normed = op.joins ? n : op.dim;
        if (weight)
            for (long i = 0; i < n; i += normed) norm(y + i, y + i, static_cast<const float*>(weight), nullptr, nullptr, normed, RMS, op.number);
        if (angles)
            for (long i = 0; i < n; i += op.dim) turn(y + i, angles, angles + half, half, op.way);
    };
    ready(x, op.heads, op.weight);
    float *k = x + op.heads * op.dim, *v = k + op.kv_heads * op.dim;
    ready(k, op.kv_heads, op.bias);
    if (!call.kept[0]) return;
    const int64_t slot = call.write[call.at(m, t)];
    Floats strange = {};
    for (long h = 0; h < op.kv_heads; h++) {
        auto *to_k = static_cast<T*>(call.kept[0][2 * op.layer]), *to_v = static_cast<T*>(call.kept[0][2 * op.layer + 1]);
        keep(k + h * op.dim, to_k + slot * z.k_slot + h * z.k_head, op.dim, strange);
        keep(v + h * op.v_dim, to_v + slot * z.v_slot + h * z.v_head, op.v_dim, strange);
    }
    if (!(total(strange) == 0)) call.strange = 1;
}

void angles_of(float* out, const Op& op, int64_t pos) {
    const auto* rate = static_cast<const float*>(op.weight);
    for (long j = 0; j < op.width / 2; j++) {
        const float angle = float(pos) * rate[j];
        out[j] = std::cos(angle) * float(op.number);
        out[op.width / 2 + j] = std::sin(angle) * float(op.number);
    }
}

// The embedding of a token, scaled, plus the row of its position; rounded after each if the table is in T.
template <class T, class P>
void embed(float* out, const Op& op, const Call& call, long m, long t) {
    const T* token = static_cast<const T*>(op.weight) + call.tokens[t * call.rows + m] * op.width;
    const P* row = call.positions ? static_cast<const P*>(call.positions) + call.pos[call.at(m, t)] * op.width : nullptr;
    const auto to_precision = [](Floats x) {
        T all[LANES];
        store(x, all);
        return load(all);
    };
    for (long i = 0; i < op.width; i += LANES) {
        const long there = std::min(LANES, op.width - i);
        Floats x = to_precision(load(token + i, there) * float(op.number));
        if (row) x = to_precision(x + to_precision(load(row + i, there)));
        store(x, out + i, there);
    }
}

// Instructions that process each token separately.
void of_row(const Op& op, Call& call, float* room, long m, long t) {
    const long M = call.rows;
    const float *in = room + op.in * M + m * op.inner, *with = op.with < 0 ? nullptr : room + op.with * M + m * op.inner;
    float* out = room + op.out * M + m * op.width;
    switch (op.what) {
        case EMBED:
            if (op.way == FP32) return embed<float, float>(out, op, call, m, t);
            return op.joins ? embed<bf16, bf16>(out, op, call, m, t) : embed<bf16, float>(out, op, call, m, t);
        case NORM: return norm(in, out, static_cast<const float*>(op.weight), static_cast<const float*>(op.bias), with, op.width, op.way, op.number);
        case ANGLES: return angles_of(out, op, call.pos[call.at(m, t)]);
        case HEADS: return call.bf16 ? heads_of<bf16>(out, with, op, call, m, t) : heads_of<float>(out, with, op, call, m, t);
        case ROUND:
            if (op.way >= INT8) {  // the scales are stored after all rows
                room[(op.out + op.width) * M + m] = rounded(in, reinterpret_cast<uint8_t*>(out), op.inner);
                return;
            }
            for (long i = 0; i < op.inner; i += LANES)
                store(load(in + i, std::min(LANES, op.inner - i)), reinterpret_cast<bf16*>(out) + i, std::min(LANES, op.inner - i));
    }
}

void product_of(const Op& op, const Call& call, float* room) {
    const long M = call.rows, N = op.width;
    const float *in = room + op.in * M, *with = room + op.with * M, *packed = static_cast<const float*>(op.weight);
    const float *bias = static_cast<const float*>(op.bias), *sizes = static_cast<const float*>(op.sizes), *units = in + op.inner * M;
    const auto* offsets = static_cast<const float*>(op.offsets);
    float* out = room + op.out * M;
    const auto finish = [&](long n, long there) {
        const Floats more = bias ? load(bias + n, there) : Floats{}, size = sizes ? load(sizes + n, there) : Floats{};
        const Ints offset = offsets ? (Ints)load(offsets + n, there) : Ints{};
        return [=, &op](long m, Floats sum) {
            if (op.way >= INT8) sum = __builtin_convertvector((Ints)sum - offset, Floats) * (size * units[m]);
            Floats y = activated(sum + more, op.activation, float(op.number));
            if (op.joins == ADDED) y += load(with + m * N + n, there);
            if (op.joins == MULTIPLIED) y *= load(with + m * N + n, there);
            store(y, out + m * N + n, there);
        };
    };
    switch (op.way) {
        case FP32: return products<float>(in, packed, M, N, op.inner, finish);
        case BF16: return products<bf16>(in, packed, M, N, op.inner, finish);
        case INT8: return products<int8_t>(in, packed, M, N, op.inner, finish);
        default: return products<int4>(in, packed, M, N, op.inner, finish);
    }
}

template <class T>
void attention_of(const Op& op, const Call& call, float* room, long t) {
    Sizes z = call.sizes[op.source];
    z.heads = op.kv_heads, z.group = op.heads / op.kv_heads, z.dim = op.dim, z.v_dim = op.v_dim, z.q_token = op.inner;
    z.scale = op.number, z.softcap = op.bound;
    const float* q = room + op.in * call.rows;
    float* out = room + op.out * call.rows;
    const bool* seen = call.seen[op.source][op.mask];
    const float* bias = op.with < 0 ? nullptr : call.bias[op.source][op.with];
    if (seen) seen += t * z.seen_query;  // queries of further steps
    if (bias) bias += t * z.bias_query;
    if (const auto* kept = call.kept[op.source])
        return attend(q, static_cast<const T*>(kept[2 * op.layer]), static_cast<const T*>(kept[2 * op.layer + 1]), out, seen, bias, call.table[op.source], z);
    z.k_head = op.dim, z.v_head = op.v_dim, z.k_slot = z.v_slot = op.inner, z.k_page = z.v_page = z.slots * op.inner;
    const float *k = q + op.heads * op.dim, *v = k + op.kv_heads * op.dim;
    attend(q, k, v, out, seen, bias, call.table[op.source], z);
}

// Choose the most likely token of each row; run by all threads.
void choose(const Op& op, Call& call, float* room, long t, Barrier& barrier) {
    const long M = call.rows, parts = (op.inner + PART - 1) / PART;
    auto* found = reinterpret_cast<LogitPart*>(room + op.out * M);
#pragma omp for schedule(static) nowait
    for (long unit = 0; unit < M * parts; unit++)
        found[unit] = part_of(room + op.in * M + unit / parts * op.inner, op.inner, unit % parts, call.banned, call.n_banned);
    barrier.wait();
#pragma omp master
    {
        bool end = t + 1 == call.steps, strange = false;
        for (long m = 0; m < M; m++) {
            const int64_t token = choice_of(found + m * parts, parts, call.log_probs[t * M + m]);
            call.tokens[(t + 1) * M + m] = token;
            strange |= !std::isfinite(call.log_probs[t * M + m]);
            end |= std::find(call.ends, call.ends + call.n_ends, token) != call.ends + call.n_ends;
        }
        call.done = strange ? t : t + 1;
        call.steps_end = end || strange;
    }
    barrier.wait();
}

// Execute the instructions for step t; run by all threads.
void step(const Op* ops, long count, Call& call, float* room, long t, Barrier& barrier) {
    for (long i = 0; i < count; i++) {
        long end = i;
        while (end < count && ops[end].what <= HEADS) end++;
        if (end > i) {
#pragma omp for schedule(static) nowait
            for (long m = 0; m < call.rows; m++)
                for (long j = i; j < end; j++) of_row(ops[j], call, room, m, t);
            i = end - 1;
        } else if (ops[i].what == PRODUCT) product_of(ops[i], call, room);
        else if (ops[i].what == CHOOSE) choose(ops[i], call, room, t, barrier);
        else if (call.bf16) attention_of<bf16>(ops[i], call, room, t);
        else attention_of<float>(ops[i], call, room, t);
        barrier.wait();
    }
}

void steps(const Op* ops, long count, Call& call, float* room) {
    Barrier barrier;
#pragma omp parallel
    {
#pragma omp single
        barrier.threads = omp_get_num_threads();
        step(ops, count, call, room, 0, barrier);
        for (long t = 1; t < call.steps && !call.steps_end; t++) step(ops, count, call, room, t, barrier);
    }
}

}  // namespace
