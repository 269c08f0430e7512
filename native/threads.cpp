#include "threads.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>

namespace octavo {
namespace {

using Clock = std::chrono::steady_clock;

// Long enough to bridge the Python between two passes, short enough not to burn an idle machine.
constexpr Clock::duration kSpinBetweenPasses = std::chrono::microseconds(1500);
// Inside a pass everybody arrives within microseconds, unless a processor was taken away.
constexpr Clock::duration kSpinInsidePass = std::chrono::microseconds(50);
// Looks at the value between two looks at the clock.
constexpr int kLooks = 64;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns once value differs from old: spins first, then parks.
template <typename T>
void await_change(const std::atomic<T>& value, T old, Clock::duration spin) {
  const Clock::time_point end = Clock::now() + spin;
  do {
    for (int i = 0; i < kLooks; i++) {
      if (value.load(std::memory_order_acquire) != old) return;
      relax();
    }
  } while (Clock::now() < end);
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

// Processors the cgroup allows, or 0 if it does not say.
double cgroup_quota() {
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (v2 >> quota >> period && quota != "max" && period > 0) return std::strtod(quota.c_str(), nullptr) / period;
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double microseconds = 0;
  if (v1_quota >> microseconds && v1_period >> period && microseconds > 0 && period > 0) return microseconds / period;
  return 0;
}

}  // namespace

int available_threads() {
  int count = int(std::thread::hardware_concurrency());
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) count = CPU_COUNT(&set);
  const double quota = cgroup_quota();
  if (quota > 0) count = std::min(count, int(std::ceil(quota)));
  return std::max(count, 1);
}

void Barrier::wait() {
  if (threads_ == 1) return;
  const unsigned phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    phase_.notify_all();
  } else {
    await_change(phase_, phase, kSpinInsidePass);
  }
}

ThreadPool::ThreadPool(int threads) : process_(getpid()), barrier_(threads), counters_(size_t(kStages) * threads) {
  workers_.reserve(threads - 1);
  try {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error&) {  // threads left unjoined would end the process
    stop();
    throw std::runtime_error("threads is " + std::to_string(threads) + ", but the system grants no more than " +
                             std::to_string(workers_.size() + 1));
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  if (getpid() != process_) {  // in a fork nothing runs that could be joined or detached: the handles are left behind
    (void)new std::vector<std::thread>(std::move(workers_));
    return;
  }
  stopping_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(const std::function<void(int)>& job) {
  if (!workers_.empty() && getpid() != process_)
    throw std::runtime_error(
        "this model was made before a fork and its threads stayed in the parent; make it anew here");
  for (int i = 0; i < kStages; i++) reset(i);
  job_ = &job;
  running_.store(int(workers_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  job(0);
  for (int left; (left = running_.load(std::memory_order_acquire)) != 0;) await_change(running_, left, kSpinInsidePass);
}

void ThreadPool::work(int thread) {
  unsigned seen = 0;
  while (true) {
    await_change(epoch_, seen, kSpinBetweenPasses);
    seen++;
    if (stopping_.load(std::memory_order_relaxed)) return;
    (*job_)(thread);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
  }
}

}  // namespace octavo
