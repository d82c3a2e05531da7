// AdamW (Loshchilov & Hutter, 2019) of many weights in two passes: the norm of the gradients, and the update.
//
// The weights are cut into parts of one size, which the threads share: one call for a hundred small tensors and for a few large ones.
#pragma once
#include "train_elementwise.hpp"

namespace {

// A weight with its gradient and the running means of gradients and of squared gradients, n numbers each.
struct AdamWTensor {
    float *weight, *gradient, *mean, *square;
    int64_t n;
    double mean_scale, root_scale;  // corrections of the mean, and of the root of the squares

    AdamWTensor part(long start, long width) const {
        return {weight + start, gradient + start, mean + start, square + start, std::min(width, long(n) - start), mean_scale, root_scale};
    }
};

std::vector<AdamWTensor> cut_parts(const AdamWTensor* tensors, long count) {
    constexpr long PART = 4096;
    std::vector<AdamWTensor> parts;
    for (long i = 0; i < count; i++)
        for (long start = 0; start < tensors[i].n; start += PART) parts.push_back(tensors[i].part(start, PART));
    return parts;
}

Floats square_root(Floats x) {
    for (long j = 0; j < LANES; j++) x[j] = std::sqrt(x[j]);
    return x;
}

}  // namespace

extern "C" {

// The sum of the squares of all gradients. Its bits do not depend on the number of threads.
double gradient_squares(const AdamWTensor* tensors, int64_t count) {
    const auto parts = cut_parts(tensors, count);
    std::vector<double> sums(parts.size());
#pragma omp parallel for schedule(static)
    for (size_t p = 0; p < parts.size(); p++) {
        Floats sum = {};
        for_vectors(parts[p].n, [&](long i, auto n) {
            const Floats gradient = load(parts[p].gradient + i, n);
            sum += gradient * gradient;
        });
        sums[p] = total(sum);
    }
    double all = 0;
    for (const double sum : sums) all += sum;
    return all;
}

// One step, of the gradients times `factor`; the weights are multiplied by `decay` before.
void adamw(const AdamWTensor* tensors, int64_t count, float factor, float rate, float beta1, float beta2, float eps, float decay) {
    const auto parts = cut_parts(tensors, count);
#pragma omp parallel for schedule(static)
    for (size_t p = 0; p < parts.size(); p++) {
        const AdamWTensor& z = parts[p];
        const float step = rate * z.mean_scale, scale = z.root_scale;
        for_vectors(z.n, [&](long i, auto n) {
            const Floats gradient = load(z.gradient + i, n) * factor, old = load(z.mean + i, n), mean = old + (gradient - old) * (1 - beta1);
            const Floats square = load(z.square + i, n) * beta2 + gradient * gradient * (1 - beta2);
            store(mean, z.mean + i, n), store(square, z.square + i, n);
            store(load(z.weight + i, n) * decay - step * mean / (square_root(square) * scale + eps), z.weight + i, n);
        });
    }
}
}
