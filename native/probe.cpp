#include "probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "memory.h"
#include "threads.h"

namespace octavo {
namespace {

constexpr int kRepeats = 5;  // the best of these: anything slower was somebody else's doing
constexpr long kRounds = 2'000'000;

// A place for results, so that the compiler cannot leave the work out.
std::atomic<float> sink;

template <typename F>
double best_seconds(ThreadPool& pool, F&& work) {
  double best = 1e30;
  for (int i = 0; i < kRepeats; i++) {
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int thread) { sink.store(work(thread), std::memory_order_relaxed); });
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

Roof measure_roof(const Kernels& kernels, int threads, size_t bytes) {
  ThreadPool pool(threads);
  const size_t share = bytes / sizeof(float) / threads / 64 * 64;
  Memory memory(bytes);
  std::fill_n(memory.as<float>(), bytes / sizeof(float), 1.0f);
  const double reading =
      best_seconds(pool, [&](int thread) { return kernels.read_all(memory.as<float>() + share * thread, share); });
  const double computing = best_seconds(pool, [&](int) { return kernels.burst(kRounds); });
  return {
      .bytes_per_second = double(share * sizeof(float)) * threads / reading,
      .flops_per_second = double(kRounds) * kernels.burst_flops * threads / computing,
  };
}

}  // namespace octavo
