// The binding: every size, type and index is checked in this room, so that nothing below has to.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/arguments.h"
#include "bind/model.h"
#include "probe.h"
#include "threads.h"

namespace octavo {
namespace {

using namespace nb::literals;

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const char* const* name = supported_isas(); *name != nullptr; name++) names.emplace_back(*name);
  return names;
}

nb::tuple measure_roof_of(const std::string& isa, int threads, int megabytes) {
  check_between("threads", threads, 1, 256);
  check_between("megabytes", megabytes, 1, 1 << 20);
  const Kernels& kernels = kernels_of(isa);
  Roof roof;
  {
    nb::gil_scoped_release release;
    roof = measure_roof(kernels, threads, size_t(megabytes) << 20);
  }
  return nb::make_tuple(roof.bytes_per_second, roof.flops_per_second);
}

}  // namespace

const Kernels& kernels_of(const std::string& isa) {
  if (const Kernels* kernels = find_kernels(isa.c_str())) return *kernels;
  std::string here;
  for (const std::string& name : isa_names()) here += (here.empty() ? "" : ", ") + name;
  fail("isa is '" + isa + "'; this machine runs " + here);
}

NB_MODULE(_native, m) {
  m.attr("LAYOUT_VERSION") = kLayoutVersion;
  m.attr("SOURCE_HASH") = OCTAVO_SOURCE_HASH;
  m.def("supported_isas", &isa_names);
  m.def("available_threads", &available_threads);
  m.def("measure_roof", &measure_roof_of, "isa"_a, "threads"_a, "megabytes"_a = 256);

  bind_pool(m);
  bind_model(m);
}

}  // namespace octavo
