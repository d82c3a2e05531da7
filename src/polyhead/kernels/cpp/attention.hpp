// Attention over keys and values in place, in pages or contiguous.
#pragma once
#include <omp.h>

#include <limits>

#include "activations.hpp"
#include "products.hpp"

namespace {

constexpr long CROWD = 8;  // from this number of queries on the same keys, keys and values are packed in panels too

// Sizes and strides of queries, keys and values; strides are in numbers, and 0 for broadcast dimensions.
struct Sizes {
    int64_t rows, share, heads, group, queries;  // rows of keys, rows of queries per row of keys, key heads, query heads per key head, T
    int64_t slots, block, pages;                 // visible slots of a row, slots of a page; pages of a row
    int64_t dim, v_dim, q_token;                 // head dimensions of keys and values; stride between the queries of two tokens
    int64_t k_head, k_page, k_slot, v_head, v_page, v_slot, seen_row, seen_head, seen_query;
    int64_t bias_row, bias_head, bias_query;     // strides of the bias, whose heads are query heads
    double scale, softcap;                       // 0: no bound
};

// Masked softmax of the products of a query with slots, after softcap and bias, up to the end of the row;
// 0 if no slot is visible.
void softmax(float* row, const bool* seen, const float* bias, float bound, long slots, long padded) {
    for (long s = 0; bound > 0 && s < padded; s += LANES) store(bound * tangent(load(row + s) / bound), row + s);
    for (long s = 0; bias && s < slots; s++) row[s] += bias[s];
    const float nothing = -std::numeric_limits<float>::infinity();
    for (long s = 0; seen && s < slots; s++) row[s] = seen[s] ? row[s] : nothing;
    for (long s = slots; s < padded; s++) row[s] = nothing;
    Floats highest = Floats{} + nothing;
    for (long s = 0; s < padded; s += LANES) highest = load(row + s) > highest ? load(row + s) : highest;
    float most = highest[0];
    for (long j = 1; j < LANES; j++) most = std::max(most, highest[j]);
    Floats sum = {};
    for (long s = 0; s < padded; s += LANES) {
        const Floats x = most == nothing ? Floats{} : exponential(load(row + s) - most);
        store(x, row + s);
        sum += x;
    }
    const float part = most == nothing ? 0 : 1 / total(sum);
    for (long s = 0; s < padded; s++) row[s] *= part;
}

constexpr long AT_ONCE = 4;  // slots whose products, and vectors of a value whose sums, are computed at once

// The slots of a row in the first head.
template <class T>
void find_slots(const T* x, const int64_t* table, const Sizes& z, int64_t page, int64_t slot, const T** out) {
    for (long start = 0; start < z.slots; start += z.block, table++) {
        const T* at = x + *table * page;
        for (long s = start; s < std::min(z.slots, start + z.block); s++, at += slot) out[s] = at;
    }
}

// Products of a query with the keys of a head; the last group repeats the last slot, so that no sum depends on their number.
template <class T>
void scores_of(const float* query, const T* const* keys, long head, const Sizes& z, float* scores) {
    for (long s = 0; s < z.slots; s += AT_ONCE) {
        const T* key[AT_ONCE];
        for (long j = 0; j < AT_ONCE; j++) key[j] = keys[std::min(s + j, z.slots - 1)] + head;
        Floats sum[AT_ONCE] = {};
        for (long d = 0; d < z.dim; d += LANES)
            for (long j = 0; j < AT_ONCE; j++) sum[j] += load(query + d) * load(key[j] + d);
        totals(sum[0], sum[1], sum[2], sum[3], scores + s);
    }
}

// N vectors of the mean of the values of a head, weighted by a row of slots.
template <long N, class Q, class T>
void mean_of(const float* weights, const T* const* values, long at, const Sizes& z, Q* out) {
    Floats sum[N] = {};
    for (long s = 0; s < z.slots; s++)
        for (long j = 0; j < N; j++) sum[j] += weights[s] * load(values[s] + at + j * LANES);
    for (long j = 0; j < N; j++) store(sum[j], out + j * LANES);
}

// Attention of all queries of some heads of one row of keys: softmax over the slots, and the weighted mean of the values.
template <class Q, class T>
void heads(const Q* q, const T* k, const T* v, Q* out, const bool* seen, const float* bias, const int64_t* table, const Sizes& z, long b, long first, long last,
           float* room) {
    const long each = z.share * z.queries * z.group, n = (last - first) * each, padded = (z.slots + LANES - 1) / LANES * LANES;
    float *query = room, *scores = query + n * z.dim;
    const auto token = [&](long i) { return b * z.share * z.queries + i % each / z.group; };
    const auto of_head = [&](long i) { return (first + i / each) * z.group + i % z.group; };

    for (long i = 0; i < n; i++)
        for (long d = 0; d < z.dim; d += LANES)
            store(load(q + token(i) * z.q_token + of_head(i) * z.dim + d) * float(z.scale), query + i * z.dim + d);
    std::vector<const T*> keys(z.slots), values(z.slots);
    find_slots(k, table + b * z.pages, z, z.k_page, z.k_slot, keys.data());
    find_slots(v, table + b * z.pages, z, z.v_page, z.v_slot, values.data());
    for (long h = first; h < last; h++)
        for (long i = (h - first) * each; i < (h - first + 1) * each; i++) {
            float* row = scores + i * padded;
            scores_of(query + i * z.dim, keys.data(), h * z.k_head, z, row);
            const long at = i % each / z.group % z.queries;
            const bool* mask = seen ? seen + b * z.seen_row + h * z.seen_head + at * z.seen_query : nullptr;
            const float* more = bias ? bias + b * z.bias_row + of_head(i) * z.bias_head + at * z.bias_query : nullptr;
            softmax(row, mask, more, float(z.softcap), z.slots, padded);
            Q* to = out + (token(i) * z.heads * z.group + of_head(i)) * z.v_dim;
            long d = 0;
            for (; d + AT_ONCE * LANES <= z.v_dim; d += AT_ONCE * LANES) mean_of<AT_ONCE>(row, values.data(), h * z.v_head + d, z, to + d);
            for (; d < z.v_dim; d += LANES) mean_of<1>(row, values.data(), h * z.v_head + d, z, to + d);
        }
}

// Attention of one head with many queries, as two matrix products with the keys and with the values.
template <class Q, class T>
void crowd(const Q* q, const T* k, const T* v, Q* out, const bool* seen, const float* bias, const int64_t* table, const Sizes& z, long b, long h, Floats* room) {
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
    for (long i = 0; i < n; i++) {
        const long query = i / z.group % z.queries;
        const bool* mask = seen ? seen + b * z.seen_row + h * z.seen_head + query * z.seen_query : nullptr;
        const float* more = bias ? bias + b * z.bias_row + (h * z.group + i % z.group) * z.bias_head + query * z.bias_query : nullptr;
        softmax(scores + i * padded, mask, more, float(z.softcap), z.slots, padded);
    }
    for (long first = 0; first < z.v_dim; first += PANEL) {
        const long width = std::min(PANEL, z.v_dim - first);
        for (long s = 0; s < z.slots; s++)
            for (long d = 0; d < width; d += LANES)
                store(load(v + page(s) * z.v_page + h * z.v_head + s % z.block * z.v_slot + first + d), panel + s * PANEL + d);
        times(scores, padded, z.slots, [&](long i, const float* sum) {
            Q* to = out + (token(i) * z.heads * z.group + h * z.group + i % z.group) * z.v_dim + first;
            for (long d = 0; d < width; d += LANES) store(load(sum + d), to + d);
        });
    }
}

// Run by all threads of the enclosing parallel region, without a barrier.
template <class Q, class T>
void attend(const Q* q, const T* k, const T* v, Q* out, const bool* seen, const float* bias, const int64_t* table, const Sizes& all) {
    const Sizes& z = all;
    const long each = z.share * z.queries * z.group, padded = (z.slots + PANEL - 1) / PANEL * PANEL, threads = omp_get_num_threads();
    const long parts = each < CROWD ? std::min(z.heads, (threads + z.rows - 1) / z.rows) : z.heads, some = (z.heads + parts - 1) / parts;
    const long shared = each < CROWD ? 0 : PANEL * (std::max(z.dim, z.slots) + ROWS);
    std::vector<Floats> room((some * each * (z.dim + padded) + shared) / LANES);
#pragma omp for schedule(static) nowait
    for (long unit = 0; unit < all.rows * parts; unit++) {
        const long b = unit / parts, first = unit % parts * some, last = std::min(z.heads, first + some);
        Sizes z = all;  // without slots at the end that the only query does not see
        while (z.queries == 1 && z.seen_head == 0 && seen && z.slots > 1 && !seen[b * z.seen_row + z.slots - 1]) z.slots--;
        if (each >= CROWD)
            crowd(q, k, v, out, seen, bias, table, z, b, first, room.data());  // one head
        else if (first < last)
            heads(q, k, v, out, seen, bias, table, z, b, first, last, reinterpret_cast<float*>(room.data()));
    }
}

}  // namespace
