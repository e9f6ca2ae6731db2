#include "comm/rendezvous/build_id.h"

#include <cstdint>
#include <cstring>

#include <elf.h>
#include <link.h>

namespace trireme::detail {
namespace {

int find_build_id(dl_phdr_info* info, std::size_t, void* result) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_NOTE) {
      continue;
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader gives addresses as numbers
    const auto* at = reinterpret_cast<const std::uint8_t*>(info->dlpi_addr + header.p_vaddr);
    const auto* end = at + header.p_memsz;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(at);
      const auto* name = at + sizeof(*note);
      const auto* value = name + ((note->n_namesz + 3) & ~3U);
      if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 &&
          std::memcmp(name, "GNU", 4) == 0) {
        auto& text = *static_cast<std::string*>(result);
        for (unsigned k = 0; k < note->n_descsz; ++k) {
          constexpr char kHex[] = "0123456789abcdef";
          text += kHex[value[k] >> 4];
          text += kHex[value[k] & 15];
        }
        return 1;
      }
      at = value + ((note->n_descsz + 3) & ~3U);
    }
  }
  return 1;  // the first object is the executable; the libraries after it do not matter
}

}  // namespace

std::string executable_build_id() {
  std::string text;
  dl_iterate_phdr(find_build_id, &text);
  return text;
}

}  // namespace trireme::detail
