// Residuals of small layers, one block of rows after another: all products and passes of a block happen in the cache.
//
// A product of a library reads and writes all rows, so between two products they leave the cache. Here only the input, the output and
// what the backward pass needs are in memory. Each thread sums the gradients of the weights of its blocks.
#pragma once
#include "train_elementwise.hpp"
#include "train_panels.hpp"

namespace {

constexpr long WIDTH = MOST * LANES;  // numbers of a step in a panel: those that registers sum at once
constexpr long CHUNK = 256;           // steps of a panel at once, which stay in the cache of the first level

template <class T>
long steps_of(long n) { return round_up(n, IN_STEP<T>) / IN_STEP<T>; }

// Columns (R, n) of rows `stride` apart -> (steps of R, width): bf16 numbers of two adjacent rows in pairs.
template <class T, class N>
void pack_columns(const T* x, long stride, long R, N n, long width, float* out) {
    for (long r = 0; r < R; r += IN_STEP<T>, out += width) {
        if constexpr (IN_STEP<T> == 1) std::memcpy(out, x + r * stride, n * sizeof(T));
        else
            for (long j = 0; j < n; j++) {
                const uint32_t pair = x[r * stride + j] | uint32_t(r + 1 < R ? x[(r + 1) * stride + j] : 0) << 16;
                std::memcpy(out + j, &pair, sizeof pair);
            }
    }
}
template <long W, class T>
void pack_columns(const T* x, long stride, long R, long n, float* out) {
    if (n == W) return pack_columns(x, stride, R, std::integral_constant<long, W>(), W, out);  // copies of a constant size are fast
    pack_columns(x, stride, R, n, W, out);
}

// A weight (N, K) in panels, [outputs / WIDTH][steps of its sums][WIDTH]: of x Wᵀ, which sums over K, or of y W, which sums over N.
template <class T>
struct PackedWeight {
    const T* weight;
    long N, K;
    bool is_transposed;
    std::vector<float> panels;

    PackedWeight(const void* weight, long N, long K, bool is_transposed)
        : weight(static_cast<const T*>(weight)), N(N), K(K), is_transposed(is_transposed), panels(round_up(outputs(), WIDTH) * steps()) {}
    long outputs() const { return is_transposed ? N : K; }
    long inputs() const { return is_transposed ? K : N; }
    long steps() const { return steps_of<T>(inputs()); }
    // Called by all threads of a parallel region.
    void pack() {
#pragma omp for schedule(static)
        for (long n = 0; n < outputs(); n += WIDTH) {
            const long here = std::min(WIDTH, outputs() - n);
            float* panel = &panels[n * steps()];
            if (!is_transposed) pack_columns<WIDTH>(weight + n, K, N, here, panel);
            else
                for (long k = 0; k < steps(); k++)
                    for (long j = 0; j < here; j++) std::memcpy(panel + k * WIDTH + j, weight + (n + j) * K + k * IN_STEP<T>, sizeof(float));
        }
    }
};

// out (M, N), `stride` apart, = or += x times panels. Step k of row m of x is at m / ROWS * group + m % ROWS * row + k * step.
template <class T, bool ADD>
void multiply_block(const float* x, long group, long row, long step, const float* panels, long M, long N, long steps, float* out, long stride) {
    for (long n = 0; n < N; n += WIDTH, panels += steps * WIDTH) {
        const long vectors = std::min(WIDTH, N - n) / LANES;
        for (long k = 0; k < steps; k += CHUNK)
            for (long m = 0, rows; m < M; m += rows) {
                rows = M - m >= ROWS ? ROWS : M - m >= 2 ? (M - m) / 2 * 2 : 1;
                const float *from = x + m / ROWS * group + m % ROWS * row + k * step, *panel = panels + k * WIDTH;
                const long some = std::min(CHUNK, steps - k);
                if (ADD || k) multiply_panel<T, true>(rows, panel, WIDTH, from, row, step, some, out + m * stride + n, stride, vectors);
                else multiply_panel<T, false>(rows, panel, WIDTH, from, row, step, some, out + m * stride + n, stride, vectors);
            }
    }
}

// Rows (M, inputs) times a packed weight -> (M, outputs); `sums` has room for them.
template <class T>
void multiply_rows(const T* x, long M, const PackedWeight<T>& weight, T* out, float* sums) {
    const long steps = weight.steps(), N = weight.outputs();
    const float* from = reinterpret_cast<const float*>(x);
    if constexpr (std::is_same_v<T, float>) return multiply_block<T, false>(from, ROWS * steps, steps, 1, weight.panels.data(), M, N, steps, out, N);
    multiply_block<T, false>(from, ROWS * steps, steps, 1, weight.panels.data(), M, N, steps, sums, N);
    for (long i = 0; i < M * N; i += LANES) store(load(sums + i), out + i);
}

// The gradient of a weight (N, K) from rows of its output's gradient, (M, N), and of its input, (M, K), is added to sums (N, K).
template <class T>
void add_weight_gradient(const T* grad, const T* x, long M, long N, long K, float* sums, float* room) {
    const long steps = steps_of<T>(M);
    float* panels = room + round_up(N, ROWS) * steps;
    for (long n = 0; n < N; n += ROWS) pack_columns<ROWS>(grad + n, N, M, std::min(ROWS, N - n), room + n * steps);
    for (long k = 0; k < K; k += WIDTH) pack_columns<WIDTH>(x + k, K, M, std::min(WIDTH, K - k), panels + k * steps);
    multiply_block<T, true>(room, ROWS * steps, 1, ROWS, panels, N, K, steps, sums, K);
}

// The sum of `count` arrays of n numbers, by all threads of a parallel region.
void sum_arrays(const std::vector<float>& arrays, long count, long n, float* out) {
#pragma omp for schedule(static)
    for (long i = 0; i < n; i += LANES) {
        Floats sum = {};
        for (long j = 0; j < count; j++) sum += load(&arrays[j * n + i]);
        store(sum, out + i);
    }
}

// What the first product of a residual reads: the norm of x, or rows that are given.
struct BlockInput {
    const float* x;            // (R, C)
    const void* product_rows;  // (R, C) in the type of the products; null if they are the norm of x
    const float *weight, *bias;
    float* stats;              // of the norm, (R, 2)
    int64_t C, is_centred;
    float shift, eps;

    Affine affine() const { return {weight, bias, shift}; }
    // Rows from r, computed in `room` if they are not given.
    template <class T>
    const T* rows(long r, long M, T* room, float* stats) const {
        if (product_rows) return static_cast<const T*>(product_rows) + r * C;
        norm(x + r * C, affine(), room, stats, M, C, eps, is_centred);
        return room;
    }
    // The gradient of x, from those of these rows and of the residual, and sums (2, C) for those of the norm's weight and bias.
    template <class T>
    void gradient(const T* d_rows, const float* residual, long r, long M, float* dx, float* sums) const {
        if (product_rows) return add_dropped(residual + r * C, d_rows, nullptr, Drop{nullptr, 0, 1}, dx + r * C, M, C);
        norm_gradient(d_rows, x + r * C, stats + 2 * r, affine(), residual + r * C, dx + r * C, sums, M, C, is_centred);
    }
};

// A dropout of rows of n elements.
struct BlockDrop {
    const uint8_t* bytes;
    int64_t threshold;
    double scale;
    Drop from(long row, long n) const { return {bytes ? bytes + row * n : nullptr, threshold, float(scale)}; }
};

template <class T>
void add_bias(T* x, const float* bias, long M, long N) {
    for (long m = 0; bias && m < M; m++)
        for (long n = 0; n < N; n += LANES) store(load(x + m * N + n) + load(bias + n), x + m * N + n);
}

// ---- linear maps

// N(x) Wᵀ + b (R, N), or dropout(y Wᵀ + b) of y (R, N) before a residual of C numbers is added.
struct LinearCall {
    BlockInput input;
    BlockDrop drop;
    const void* weight;
    const float* bias;
    void *y, *dy;                   // (R, N)
    const float* grad;              // (R, C), of the residual
    float *dx, *d_weight, *d_sums;  // gradients of x and the weight; sums over rows
    int64_t R, N;
};

template <class T>
void norm_linear(const LinearCall& z) {
    const long R = z.R, C = z.input.C, N = z.N;
    PackedWeight<T> weight(z.weight, N, C, true);
#pragma omp parallel
    {
        weight.pack();
        std::vector<T> h(BLOCK_ROWS * C);
        std::vector<float> sums(BLOCK_ROWS * N);
#pragma omp for schedule(static)
        for (long r = 0; r < R; r += BLOCK_ROWS) {
            const long M = std::min(BLOCK_ROWS, R - r);
            T* y = static_cast<T*>(z.y) + r * N;
            multiply_rows(z.input.rows(r, M, h.data(), z.input.stats + 2 * r), M, weight, y, sums.data());
            add_bias(y, z.bias, M, N);
        }
    }
}

// From dy (R, N): the gradients of x and of the weight (N, C), and sums for those of the norm.
template <class T>
void norm_linear_gradient(const LinearCall& z) {
    const long R = z.R, C = z.input.C, N = z.N, blocks = (R + BLOCK_ROWS - 1) / BLOCK_ROWS, threads = omp_get_max_threads();
    PackedWeight<T> weight(z.weight, N, C, false);
    std::vector<float> d_weight(threads * N * C), block_sums(blocks * 2 * C);
#pragma omp parallel
    {
        weight.pack();
        std::vector<T> h(BLOCK_ROWS * C), d_h(BLOCK_ROWS * C);
        std::vector<float> stats(2 * BLOCK_ROWS), sums(BLOCK_ROWS * C), room(BLOCK_ROWS * (N + C + ROWS + WIDTH));
        float* own = &d_weight[omp_get_thread_num() * N * C];
#pragma omp for schedule(static)
        for (long r = 0; r < R; r += BLOCK_ROWS) {
            const long M = std::min(BLOCK_ROWS, R - r);
            const T* dy = static_cast<const T*>(z.dy) + r * N;
            add_weight_gradient(dy, z.input.rows(r, M, h.data(), stats.data()), M, N, C, own, room.data());
            multiply_rows(dy, M, weight, d_h.data(), sums.data());
            z.input.gradient(d_h.data(), z.grad, r, M, z.dx, &block_sums[r / BLOCK_ROWS * 2 * C]);
        }
        sum_arrays(d_weight, threads, N * C, z.d_weight);
        sum_arrays(block_sums, blocks, 2 * C, z.d_sums);
    }
}

// From the gradient of x + dropout(y Wᵀ + b): those of y and of the weight (C, N), and sums for that of the bias.
template <class T>
void linear_residual_gradient(const LinearCall& z) {
    const long R = z.R, C = z.input.C, N = z.N, blocks = (R + BLOCK_ROWS - 1) / BLOCK_ROWS, threads = omp_get_max_threads();
    PackedWeight<T> weight(z.weight, C, N, false);
    std::vector<float> d_weight(threads * N * C), block_sums(blocks * C);
#pragma omp parallel
    {
        weight.pack();
        std::vector<T> d_out(BLOCK_ROWS * C);
        std::vector<float> sums(BLOCK_ROWS * N), room(BLOCK_ROWS * (N + C + ROWS + WIDTH));
        float* own = &d_weight[omp_get_thread_num() * N * C];
#pragma omp for schedule(static)
        for (long r = 0; r < R; r += BLOCK_ROWS) {
            const long M = std::min(BLOCK_ROWS, R - r);
            drop_gradient(z.grad + r * C, z.drop.from(r, C), d_out.data(), &block_sums[r / BLOCK_ROWS * C], M, C);
            add_weight_gradient(d_out.data(), static_cast<const T*>(z.y) + r * N, M, C, N, own, room.data());
            multiply_rows(d_out.data(), M, weight, static_cast<T*>(z.dy) + r * N, sums.data());
        }
        sum_arrays(d_weight, threads, N * C, z.d_weight);
        sum_arrays(block_sums, blocks, C, z.d_sums);
    }
}

// ---- feed-forward layers

// x + dropout(W2 g(W1 N(x) + b1) + b2), g with dropout, of rows (R, C) and features (R, F); gated, W1 has 2F outputs.
struct FeedForwardCall {
    BlockInput input;
    BlockDrop inner, outer;
    const void *up, *down;  // weights in the type of the products
    const float *up_bias, *down_bias;
    void* hidden;                   // W1 N(x) + b1
    float* out;                     // the output, or the gradient of x
    const float* grad;              // of the output
    float *d_up, *d_down, *d_sums;  // gradients of the weights, and of b2, b1, weight and bias of the norm in turn
    int64_t R, F, activation, is_gated;
    double slope;

    long width() const { return is_gated ? 2 * F : F; }
};

template <class T>
void feed_forward(const FeedForwardCall& z) {
    const long R = z.R, C = z.input.C, F = z.F, H = z.width();
    PackedWeight<T> up(z.up, H, C, true), down(z.down, C, F, true);
#pragma omp parallel
    {
        up.pack(), down.pack();
        std::vector<T> h(BLOCK_ROWS * C), active(BLOCK_ROWS * F), y(BLOCK_ROWS * C);
        std::vector<float> sums(BLOCK_ROWS * std::max(H, C));
#pragma omp for schedule(static)
        for (long r = 0; r < R; r += BLOCK_ROWS) {
            const long M = std::min(BLOCK_ROWS, R - r);
            T* hidden = static_cast<T*>(z.hidden) + r * H;
            multiply_rows(z.input.rows(r, M, h.data(), z.input.stats + 2 * r), M, up, hidden, sums.data());
            add_bias(hidden, z.up_bias, M, H);
            activate(hidden, z.inner.from(r, F), active.data(), M, F, z.activation, float(z.slope), z.is_gated);
            multiply_rows(active.data(), M, down, y.data(), sums.data());
            add_dropped(z.input.x + r * C, y.data(), z.down_bias, z.outer.from(r, C), z.out + r * C, M, C);
        }
    }
}

template <class T>
void feed_forward_gradient(const FeedForwardCall& z) {
    const long R = z.R, C = z.input.C, F = z.F, H = z.width(), blocks = (R + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const long all_sums = 3 * C + H, threads = omp_get_max_threads();
    PackedWeight<T> up(z.up, H, C, false), down(z.down, C, F, false);
    std::vector<float> d_up(threads * H * C), d_down(threads * C * F), block_sums(blocks * all_sums);
#pragma omp parallel
    {
        const long thread = omp_get_thread_num(), most = std::max(H, C);
        up.pack(), down.pack();
        std::vector<T> h(BLOCK_ROWS * C), d_out(BLOCK_ROWS * C), d_h(BLOCK_ROWS * C), active(BLOCK_ROWS * F), d_active(BLOCK_ROWS * F);
        std::vector<T> d_both(z.is_gated ? BLOCK_ROWS * H : 0);
        T* d_hidden = z.is_gated ? d_both.data() : d_active.data();
        std::vector<float> stats(2 * BLOCK_ROWS), sums(BLOCK_ROWS * most), room(BLOCK_ROWS * (2 * most + ROWS + WIDTH));
#pragma omp for schedule(static)
        for (long r = 0; r < R; r += BLOCK_ROWS) {
            const long M = std::min(BLOCK_ROWS, R - r);
            float* d_biases = &block_sums[r / BLOCK_ROWS * all_sums];
            drop_gradient(z.grad + r * C, z.outer.from(r, C), d_out.data(), d_biases, M, C);
            multiply_rows(d_out.data(), M, down, d_active.data(), sums.data());
            activate_gradient(d_active.data(), static_cast<const T*>(z.hidden) + r * H, z.inner.from(r, F), active.data(), d_hidden, d_biases + C,
                              M, F, z.activation, float(z.slope), z.is_gated);
            add_weight_gradient(d_out.data(), active.data(), M, C, F, &d_down[thread * C * F], room.data());
            add_weight_gradient(d_hidden, z.input.rows(r, M, h.data(), stats.data()), M, H, C, &d_up[thread * H * C], room.data());
            multiply_rows(d_hidden, M, up, d_h.data(), sums.data());
            z.input.gradient(d_h.data(), z.grad, r, M, z.out, d_biases + C + H);
        }
        sum_arrays(d_up, threads, H * C, z.d_up);
        sum_arrays(d_down, threads, C * F, z.d_down);
        sum_arrays(block_sums, blocks, all_sums, z.d_sums);
    }
}

}  // namespace

#define POLYHEAD_BLOCKS(T)                                                                                 \
    void norm_linear_##T(const LinearCall* call) { norm_linear<T>(*call); }                                \
    void norm_linear_gradient_##T(const LinearCall* call) { norm_linear_gradient<T>(*call); }              \
    void linear_residual_gradient_##T(const LinearCall* call) { linear_residual_gradient<T>(*call); }      \
    void feed_forward_##T(const FeedForwardCall* call) { feed_forward<T>(*call); }                         \
    void feed_forward_gradient_##T(const FeedForwardCall* call) { feed_forward_gradient<T>(*call); }

extern "C" {
POLYHEAD_BLOCKS(fp32)
POLYHEAD_BLOCKS(bf16)
}
#undef POLYHEAD_BLOCKS
