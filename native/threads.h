// Persistent worker threads for one forward pass at a time. Between passes they spin a moment, then park.
#pragma once
#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace octavo {

// Processors this process may use: the smaller of its affinity mask and its cgroup quota, at least 1.
int available_threads();

// All threads meet before any goes on.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void wait();

 private:
  const int threads_;
  std::atomic<int> arrived_{0};
  std::atomic<unsigned> phase_{0};
};

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;

  int size() const { return int(workers_.size()) + 1; }

  // Runs job(thread) on every thread, the caller being thread 0, and returns when all are done. job must not throw.
  void run(const std::function<void(int)>& job);

  void barrier() { barrier_.wait(); }

  // Units of work [0, units) in order of demand: which thread takes a unit never changes what the unit computes.
  // Every thread of a run calls this for the same stages in the same order, with a barrier between stages.
  template <typename F>
  void share(int stage, size_t units, F&& unit) {
    std::atomic<size_t>& next = counters_[stage % kCounters].next;
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < units;) unit(i);
  }
  // Makes the counter of a later stage ready; called by one thread while no thread uses that stage.
  void reset(int stage) { counters_[stage % kCounters].next.store(0, std::memory_order_relaxed); }

  static constexpr int kCounters = 4;

 private:
  struct alignas(64) Counter {
    std::atomic<size_t> next{0};
  };

  void work(int thread);
  void stop();

  Barrier barrier_;
  Counter counters_[kCounters];
  const std::function<void(int)>* job_ = nullptr;
  std::atomic<unsigned> epoch_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

}  // namespace octavo
