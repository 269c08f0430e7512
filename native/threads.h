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
  // Throws std::runtime_error in a process forked from the one that made the pool: threads are not copied by a fork.
  void run(const std::function<void(int)>& job);

  void barrier() { barrier_.wait(); }

  // Units of work [0, units), each done once: every thread takes those of its own contiguous part in order, so that it
  // reads memory as one stream, and then helps the others with what is left of theirs. Which thread takes a unit never
  // changes what the unit computes. Every thread of a run calls this for the same stages in the same order, with a
  // barrier between stages.
  template <typename F>
  void share(int stage, int thread, size_t units, F&& unit) {
    const size_t threads = size();
    for (size_t i = 0; i < threads; i++) {
      const size_t part = (thread + i) % threads;
      const size_t first = units * part / threads, count = units * (part + 1) / threads - first;
      std::atomic<size_t>& next = counter(stage, part).next;
      if (i > 0 && next.load(std::memory_order_relaxed) >= count) continue;
      for (size_t k; (k = next.fetch_add(1, std::memory_order_relaxed)) < count;) unit(first + k);
    }
  }
  // Makes the counters of a later stage ready; called by one thread while no thread uses that stage.
  void reset(int stage) {
    for (int part = 0; part < size(); part++) counter(stage, part).next.store(0, std::memory_order_relaxed);
  }

 private:
  // Stages take turns with this many sets of counters.
  static constexpr int kStages = 4;

  struct alignas(64) Counter {
    std::atomic<size_t> next{0};
  };

  void work(int thread);
  void stop();

  Counter& counter(int stage, size_t part) { return counters_[size_t(stage % kStages) * size() + part]; }

  const int process_;
  Barrier barrier_;
  std::vector<Counter> counters_;  // [kStages, threads]
  const std::function<void(int)>* job_ = nullptr;
  std::atomic<unsigned> epoch_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

}  // namespace octavo
