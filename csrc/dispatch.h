// Which kernels run: the best available instruction set, or the one that is asked for.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "target.h"

namespace fewbit {

const std::vector<const Target*>& compiled_targets();   // those that this build has, best first
const std::vector<const Target*>& available_targets();  // those of them that this machine runs, best first
const Target& current_target();
void use_target(const std::string& name);  // throws std::invalid_argument if it is not available
const std::vector<std::string>& format_names();
size_t format_number(std::string_view name);  // its place in format_names
// Whether integer dot products can be used for rows of this layout: groups are whole 32s, or one for the row.
bool has_dot(const Kernels& kernels, const Layout& at, size_t k);
// Whether products can interleave rows of this layout as they go, padded to whole k-blocks: with scales at their end,
// groups must be powers of two.
bool has_panels(const Kernels& kernels, const Layout& at, size_t k);
// Whether rows of k values can be stored interleaved.
bool can_interleave(const Kernels& kernels, const Layout& at, size_t k);

}  // namespace fewbit
