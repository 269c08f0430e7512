#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace octavo {
namespace {
constexpr size_t kHugePage = size_t(2) << 20;

void* map(size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  return address;
}
}  // namespace

Memory::Memory(size_t bytes) {
  if (bytes == 0) return;
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();  // what is rounded up below must not wrap
  if (bytes < kHugePage) {
    data_ = static_cast<uint8_t*>(map(bytes));
    bytes_ = bytes;
    return;
  }
  // A huge page starts at a multiple of its size: map one more and give back what lies before and after.
  uint8_t* start = static_cast<uint8_t*>(map(bytes + kHugePage));
  uint8_t* aligned = start + (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
  const size_t page = size_t(sysconf(_SC_PAGESIZE)), kept = (bytes + page - 1) / page * page;
  if (aligned > start) munmap(start, aligned - start);
  munmap(aligned + kept, start + bytes + kHugePage - (aligned + kept));
  data_ = aligned;
  bytes_ = bytes;
#ifdef MADV_HUGEPAGE
  // Advice only: without huge pages everything works, slower.
  (void)madvise(data_, bytes, MADV_HUGEPAGE);
#endif
}

Memory::~Memory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace octavo
