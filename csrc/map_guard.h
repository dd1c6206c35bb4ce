// Memory maps of files that somebody may truncate. Reading past the new end raises SIGBUS, which would end the process:
// in a guarded map the missing pages become zeros instead, and the map is marked as failed.
#pragma once
#include <cstddef>

namespace fewbit {

size_t guard_map(const void* address, size_t size);  // its number, until unguard_map; throws if there are too many
bool map_failed(size_t number);
void unguard_map(size_t number);

}  // namespace fewbit
