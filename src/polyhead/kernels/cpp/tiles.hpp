// AMX: registers with tiles of a matrix, 16 rows of 64 bytes, and products of two tiles.
#pragma once
#include <algorithm>

#include "vectors.hpp"

#if defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define POLYHEAD_AMX
#endif

namespace {

constexpr long TILE = 16, PANEL = 64;  // rows of a tile, and its steps or outputs; outputs of a panel

#ifdef POLYHEAD_AMX

// A process has to request them once, because they enlarge the context of a thread (ARCH_REQ_XCOMP_PERM for XTILEDATA).
const bool MAY = syscall(SYS_arch_prctl, 0x1023, 18) == 0;

template <class T>
bool tiled() {
    return MAY && sizeof(T) < sizeof(float);
}

// Tile registers of a thread: sums of four times 16 outputs, 16 steps of the input, of weights, and the remainders of both.
struct Tiles {
    Tiles(long rows, long steps) {
        alignas(64) uint8_t shape[64] = {1};
        for (long tile = 0; tile < 8; tile++) {
            const long depth = tile < 6 ? TILE : std::max(steps % TILE, 1L);
            shape[16 + 2 * tile] = uint8_t(4 * (tile == 6 ? depth : TILE));  // bytes of a row
            shape[48 + tile] = uint8_t(tile == 5 || tile == 7 ? depth : rows);
        }
        _tile_loadconfig(shape);
    }
    ~Tiles() { _tile_release(); }
};

// Products are of bf16, or of int8 weights and uint8 inputs.
#define POLYHEAD_PART(sum, input, weights)                                          \
    _tile_loadd(weights, panel + k * PANEL + sum * TILE, 4 * PANEL);                \
    if constexpr (sizeof(T) == 1) _tile_dpbusd(sum, input, weights);                \
    else _tile_dpbf16ps(sum, input, weights);
#define POLYHEAD_PARTS(input, weights)                                              \
    _tile_loadd(input, x + k, 4 * steps);                                           \
    POLYHEAD_PART(0, input, weights)                                                \
    POLYHEAD_PART(1, input, weights)                                                \
    POLYHEAD_PART(2, input, weights)                                                \
    POLYHEAD_PART(3, input, weights)

// The number of rows that the tiles are configured for, times a panel -> sums (rows, 64)
template <class T>
void multiply_tiles(const float* panel, const float* x, long steps, float* sums) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    long k = 0;
    for (; k + TILE <= steps; k += TILE) {
        POLYHEAD_PARTS(4, 5)
    }
    if (k < steps) {
        POLYHEAD_PARTS(6, 7)
    }
    _tile_stored(0, sums, 4 * PANEL);
    _tile_stored(1, sums + TILE, 4 * PANEL);
    _tile_stored(2, sums + 2 * TILE, 4 * PANEL);
    _tile_stored(3, sums + 3 * TILE, 4 * PANEL);
}

#undef POLYHEAD_PART
#undef POLYHEAD_PARTS

#else

template <class T>
constexpr bool tiled() {
    return false;
}
struct Tiles {
    Tiles(long, long) {}
};
template <class T>
void multiply_tiles(const float*, const float*, long, float*) {}

#endif

}  // namespace
