// Cross-entropy of rows of logits: the loss, and in place the gradient of the logits.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "activations.hpp"

namespace {

struct LossOptions {
    float softcap;    // 0: no bound
    float smoothing;  // of the labels
    bool gradient;    // replace logits by their gradients
};
float number(float x) { return x; }
float number(bf16 x) { return wide(x); }

struct LossSums {
    double total, nll;
};

// One row: logits z = x + bias, or c tanh((x + bias) / c). nll = lse(z) - z[label]; total = (1 - e) nll + e (lse - mean(z)).
// Gradient of total: softmax(z) - e / V, at the label 1 - e less, times 1 - (z / c)^2; it is added to d_bias too.
template <class T>
LossSums cross_entropy_row(T* row, const float* bias, int64_t label, long V, const LossOptions& options, float* d_bias) {
    const float nothing = -std::numeric_limits<float>::infinity(), cap = options.softcap;
    const auto logits = [&](long i, long n) {
        Floats z = load(row + i, n);
        if (bias) z += load(bias + i, n);
        return cap > 0 ? cap * tangent(z / cap) : z;
    };
    const auto at_end = [](Floats x, long n, float value) {  // lanes beyond the row
        for (long j = n; j < LANES; j++) x[j] = value;
        return x;
    };
    const long whole = V / LANES * LANES, rest = V - whole;
    Floats most = Floats{} + nothing, sum = {}, all = {};
    for (long i = 0; i < whole; i += LANES) {
        const Floats z = logits(i, LANES);
        most = z > most ? z : most;
        all += z;
    }
    if (rest) {
        const Floats z = logits(whole, rest), padded = at_end(z, rest, nothing);
        most = padded > most ? padded : most;
        all += at_end(z, rest, 0);
    }
    float highest = most[0];
    for (long j = 1; j < LANES; j++) highest = std::max(highest, most[j]);
    for (long i = 0; i < whole; i += LANES) sum += exponential(logits(i, LANES) - highest);
    if (rest) sum += exponential(at_end(logits(whole, rest), rest, nothing) - highest);

    float at_label = number(row[label]) + (bias ? bias[label] : 0);
    at_label = cap > 0 ? cap * std::tanh(at_label / cap) : at_label;
    const float mean = total(all) / V;
    const bool strange = mean != mean || !(std::abs(highest) < std::numeric_limits<float>::infinity());  // lanes drop NaN
    const double lse = strange ? std::numeric_limits<double>::quiet_NaN() : double(highest) + std::log(double(total(sum)));
    const double nll = lse - at_label, smoothing = options.smoothing;
    const double loss = smoothing > 0 ? (1 - smoothing) * nll + smoothing * (lse - mean) : nll;
    if (!options.gradient) return {loss, nll};

    const float shift = float(lse), poison = shift * 0, share = float(smoothing / V) + poison;
    const auto gradient = [&](long i, long n) {
        const Floats z = logits(i, n);
        Floats d = exponential(z - shift) - share;
        if (label >= i && label < i + n) d[label - i] -= float(1 - smoothing);
        if (cap > 0) d *= 1 - (z / cap) * (z / cap);
        if (d_bias) store(load(d_bias + i, n) + d, d_bias + i, n);
        return d;
    };
    for (long i = 0; i < whole; i += LANES) store(gradient(i, LANES), row + i);
    if (rest) store(gradient(whole, rest), row + whole, rest);
    return {loss, nll};
}

// Rows (M, V) with labels (M) -> sums of their losses; in parallel, added in the order of the rows.
template <class T>
void cross_entropy_rows(T* rows, const float* bias, const int64_t* labels, long M, long V, const LossOptions& options, float* d_bias, double* sums) {
    std::vector<LossSums> each(M);
#pragma omp parallel
    {
        std::vector<float> own(d_bias ? V : 0);
#pragma omp for schedule(static)
        for (long m = 0; m < M; m++) each[m] = cross_entropy_row(rows + m * V, bias, labels[m], V, options, d_bias ? own.data() : nullptr);
#pragma omp for ordered schedule(static, 1)
        for (long thread = 0; thread < omp_get_num_threads(); thread++)
#pragma omp ordered
            for (long i = 0; i < long(own.size()); i++) d_bias[i] += own[i];
    }
    for (const LossSums& one : each) sums[0] += one.total, sums[1] += one.nll;
}

}  // namespace

extern "C" {

void cross_entropy_fp32(float* rows, const float* bias, const int64_t* labels, long M, long V, const LossOptions* options, float* d_bias,
                        double* sums) {
    cross_entropy_rows(rows, bias, labels, M, V, *options, d_bias, sums);
}
void cross_entropy_bf16(bf16* rows, const float* bias, const int64_t* labels, long M, long V, const LossOptions* options, float* d_bias,
                        double* sums) {
    cross_entropy_rows(rows, bias, labels, M, V, *options, d_bias, sums);
}

// sums (n) += x (n), or = x if it is the first term
void add_bf16(float* sums, const bf16* x, long n, bool first) {
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i += LANES) {
        const long here = std::min(LANES, n - i);
        store(first ? load(x + i, here) : load(sums + i, here) + load(x + i, here), sums + i, here);
    }
}

}  // extern "C"
