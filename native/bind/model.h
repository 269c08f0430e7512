// The model as Python holds it, and what each file of this room adds to the module.
#pragma once
#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "decoder/decoder.h"
#include "sampler/sampler.h"

namespace octavo {

namespace nb = nanobind;

// One caller at a time: the engine's thread. A second one is told so, rather than left to corrupt the first.
class Exclusive {
 public:
  explicit Exclusive(std::atomic<bool>& busy) : busy_(busy) {
    if (busy_.exchange(true, std::memory_order_acquire))
      throw std::runtime_error("this model is busy in another thread; one object serves one thread at a time");
  }
  ~Exclusive() { busy_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool>& busy_;
};

struct Model {
  std::unique_ptr<Decoder> decoder;
  std::vector<SamplerScratch> scratch;
  std::atomic<bool> busy{false};
};

// Throws std::invalid_argument if this machine does not run the instruction set.
const Kernels& kernels_of(const std::string& isa);

void bind_pool(nb::module_& m);
void bind_model(nb::module_& m);
void bind_sampling(nb::class_<Model>& model);

}  // namespace octavo
