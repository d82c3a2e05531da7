// Limits of this processor: products of vectors that stay in registers, and reads of memory.
// Each loop runs in all threads; it returns the number of operations, or of bytes, of them together.
#include <cstdint>
#include <cstring>
#include <immintrin.h>
#include <omp.h>

namespace {
#if defined(__AVX512F__)
constexpr int kBytes = 64;
#else
constexpr int kBytes = 32;
#endif
typedef float Floats __attribute__((vector_size(kBytes)));
typedef uint64_t Words __attribute__((vector_size(kBytes)));
constexpr int kSums = 12;  // independent sums hide the latency of a product

// Runs `product(sum, a, b)` of every sum; the barrier keeps the compiler from moving it out of the loop.
template <class Sum, class Factor, class Product>
int64_t run_products(int64_t rounds, int64_t each, Product product) {
#pragma omp parallel
  {
    Sum sums[kSums] = {};
    Factor a, b;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) asm volatile("" : "+x"(sums[i]));  // or they would be one sum
    for (int64_t round = 0; round < rounds; ++round) {
      asm volatile("" : "+x"(a), "+x"(b));
#pragma GCC unroll 12
      for (int i = 0; i < kSums; ++i) sums[i] = product(sums[i], a, b);
    }
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) asm volatile("" ::"x"(sums[i]));
  }
  return rounds * kSums * each * omp_get_max_threads();
}
}  // namespace

extern "C" {
int64_t fp32_products(int64_t rounds) {
  return run_products<Floats, Floats>(
      rounds, 2 * kBytes / 4, [](Floats sum, Floats a, Floats b) { return sum + a * b; });
}

int64_t bf16_products(int64_t rounds) {
#if defined(__AVX512BF16__)
  return run_products<__m512, __m512i>(rounds, 64, [](__m512 sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  });
#else
  return 0;
#endif
}

int64_t int8_products(int64_t rounds) {
#if defined(__AVX512VNNI__)
  return run_products<__m512i, __m512i>(
      rounds, 128, [](__m512i sum, __m512i a, __m512i b) { return _mm512_dpbusd_epi32(sum, a, b); });
#elif defined(__AVX512BW__)  // exact products of 16 bits
  return run_products<__m512i, __m512i>(rounds, 64, [](__m512i sum, __m512i a, __m512i b) {
    asm volatile("vpmaddwd %0, %1, %0" : "+v"(a) : "v"(b));  // or all sums would share a product
    return _mm512_add_epi32(sum, a);
  });
#elif defined(__AVX2__)
  return run_products<__m256i, __m256i>(rounds, 32, [](__m256i sum, __m256i a, __m256i b) {
    asm volatile("vpmaddwd %0, %1, %0" : "+x"(a) : "x"(b));
    return _mm256_add_epi32(sum, a);
  });
#else
  return 0;
#endif
}

// Reads `bytes` (a multiple of 512 per thread) `rounds` times, each thread its own part.
int64_t read_memory(const char* data, int64_t bytes, int64_t rounds) {
#pragma omp parallel
  {
    const int64_t part = bytes / omp_get_num_threads() / 512 * 512;
    const char* own = data + omp_get_thread_num() * part;
    Words sums[4] = {};
    for (int64_t round = 0; round < rounds; ++round)
      for (int64_t at = 0; at < part; at += 4 * kBytes)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          Words word;
          memcpy(&word, own + at + i * kBytes, kBytes);
          sums[i] ^= word;
        }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) asm volatile("" ::"x"(sums[i]));
  }
  return bytes * rounds;
}

void set_threads(int threads) { omp_set_num_threads(threads); }
}
