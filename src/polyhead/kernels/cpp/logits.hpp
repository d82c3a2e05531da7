// Rows of logits: logsumexp, the largest numbers, and the choice of the most likely token.
#pragma once
#include <cmath>
#include <limits>

#include "tiles.hpp"

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

// The k largest numbers of a row in descending order, ties in column order, and their columns, counted from `first`; banned columns
// are skipped. Few are larger than the smallest found so far, so hardly anything is moved.
void best(const float* row, long width, long k, const int64_t* banned, long bans, float* values, int64_t* ids, long first = 0) {
    for (long j = 0; j < k; j++) values[j] = -std::numeric_limits<float>::infinity(), ids[j] = first + j;
    const auto take = [&](long i) {
        if (!(row[i] > values[k - 1]) || std::find(banned, banned + bans, first + i) != banned + bans) return;
        long at = k - 1;
        for (; at > 0 && row[i] > values[at - 1]; at--) values[at] = values[at - 1], ids[at] = ids[at - 1];
        values[at] = row[i], ids[at] = first + i;
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

// A part of a row of logits for the choice of a token: its largest allowed number and the column, its maximum, and the sum of
// e^(x - maximum). Parts, whose bounds depend on nothing else, make the result independent of the number of threads.
struct LogitPart {
    float value, most, sum;
    int32_t id;
};
constexpr long PART = 4096;  // numbers of a part

LogitPart part_of(const float* row, long width, long part, const int64_t* banned, long bans) {
    const long first = part * PART, n = std::min(PART, width - first);
    LogitPart out;
    int64_t id;
    float sums[2];
    best(row + first, n, 1, banned, bans, &out.value, &id, first);
    log_sum(row + first, n, sums);
    out.id = int32_t(id), out.most = sums[0], out.sum = std::exp(sums[1]);
    return out;
}

// The most likely token of all parts and its log-probability, NaN where a logit is.
int64_t choice_of(const LogitPart* parts, long n, float& log_prob) {
    const LogitPart* chosen = parts;
    float most = parts->most, sum = 0;
    for (long i = 1; i < n; i++) {
        if (parts[i].value > chosen->value) chosen = parts + i;
        most = std::max(most, parts[i].most);
    }
    for (long i = 0; i < n; i++) sum += parts[i].sum * std::exp(parts[i].most - most);
    log_prob = chosen->value - most - std::log(sum);
    return chosen->id;
}

}  // namespace
