#include "memory.h"

#include <sys/mman.h>

#include <new>

namespace octavo {
namespace {
// Mappings are aligned to the huge page size only if they are at least as large; small ones stay small.
constexpr size_t kHugePage = size_t(2) << 20;
}  // namespace

Memory::Memory(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    bytes_ = 0;
    throw std::bad_alloc();
  }
  data_ = static_cast<uint8_t*>(address);
#ifdef MADV_HUGEPAGE
  // Advice only: without huge pages everything works, slower.
  if (bytes >= kHugePage) (void)madvise(data_, bytes, MADV_HUGEPAGE);
#endif
}

Memory::~Memory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace octavo
