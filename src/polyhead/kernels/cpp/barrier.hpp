// A barrier for threads that wait for microseconds.
#pragma once
#include <sched.h>

#include <atomic>

namespace {

constexpr long SPINS = 1 << 12;  // checks before the processor is offered to other processes

// Waiting threads spin: OpenMP's barrier takes several times as long, and does not yield a processor that another process needs.
struct Barrier {
    long threads = 1;
    alignas(64) std::atomic<long> arrived{0};
    alignas(64) std::atomic<long> phase{0};

    void wait() {
        if (threads == 1) return;
        const long now = phase.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
            arrived.store(0, std::memory_order_relaxed);
            phase.store(now + 1, std::memory_order_release);
            return;
        }
        for (long i = 0; phase.load(std::memory_order_acquire) == now; i++) {
#if defined(__SSE2__)
            _mm_pause();
#endif
            if (i > SPINS) sched_yield();
        }
    }
};

}  // namespace
