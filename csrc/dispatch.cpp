// Which instruction set is used: the best that the machine has, or the one that is asked for.
#include "dispatch.h"

#include <atomic>
#include <stdexcept>

#include "formats.generated.h"
#include "targets.generated.h"
#include "threads.h"

namespace fewbit {

#define FEWBIT_DECLARE(isa, of_products, of_kv, of_rows, of_encode) \
  namespace isa {                                                   \
  bool available();                                                 \
  }                                                                 \
  namespace of_products {                                           \
  extern const ProductTable products;                               \
  }                                                                 \
  namespace of_kv {                                                 \
  extern const KvTable kv;                                          \
  }                                                                 \
  namespace of_rows {                                               \
  extern const RowTable rows;                                       \
  }                                                                 \
  namespace of_encode {                                             \
  extern const Encode encoders[];                                   \
  }
FEWBIT_ISAS(FEWBIT_DECLARE)

namespace {

using FormatTable = std::vector<Kernels>;

FormatTable* make_kernels(const Target& target) {
  auto* out = new FormatTable(format_names().size());
  target.rows.add(out->data());
  target.products.add(out->data());
  target.kv.add(out->data());
  for (size_t i = 0; i < out->size(); ++i) (*out)[i].encode = target.encoders[i];
  return out;
}

// These lists are never destroyed: threads may go on while the process exits.
template <const Target& target>
const Kernels* kernels() {
  static const FormatTable& all = *make_kernels(target);
  return all.data();
}

#define FEWBIT_TARGET(isa, of_products, of_kv, of_rows, of_encode)                                   \
  extern const Target isa##_target;                                                                  \
  const Target isa##_target = {#isa,          isa::available,      of_products::products, of_kv::kv, \
                               of_rows::rows, of_encode::encoders, kernels<isa##_target>};
FEWBIT_ISAS(FEWBIT_TARGET)

}  // namespace

const std::vector<const Target*>& compiled_targets() {
#define FEWBIT_ADDRESS(isa, ...) &isa##_target,
  static const auto& all = *new std::vector<const Target*>{FEWBIT_ISAS(FEWBIT_ADDRESS)};
  return all;
}

const std::vector<const Target*>& available_targets() {
  static const std::vector<const Target*>& found = *[] {
    auto* out = new std::vector<const Target*>;
    for (const Target* t : compiled_targets()) {
      if (t->available()) out->push_back(t);
    }
    return out;
  }();
  return found;
}

namespace {
std::atomic<const Target*> forced{nullptr};
}

const Target& current_target() {
  if (const Target* own = target_of_call()) return *own;
  const Target* t = forced.load(std::memory_order_acquire);
  return t ? *t : *available_targets().front();
}

void use_target(const std::string& name) {
  std::string known;
  for (const Target* t : available_targets()) {
    if (name == t->name) {
      forced.store(t, std::memory_order_release);
      return;
    }
    known += known.empty() ? t->name : std::string(", ") + t->name;
  }
  throw std::invalid_argument("instruction set '" + name + "' is not available here; available: " + known);
}

const std::vector<std::string>& format_names() {
#define FEWBIT_NAME(F) formats::F::name,
  static const auto& names = *new std::vector<std::string>{FEWBIT_FORMATS(FEWBIT_NAME)};
#undef FEWBIT_NAME
  return names;
}

size_t format_number(std::string_view name) {
  size_t i = 0;
  while (format_names().at(i) != name) ++i;
  return i;
}

bool has_dot(const Kernels& kernels, const Layout& at, size_t k) {
  return kernels.gemv &&
         (at.group >= k || at.group == static_cast<size_t>(kernels.group_size) || at.group % kGranule == 0);
}

bool has_panels(const Kernels& kernels, const Layout& at, size_t k) {
  const bool at_end = at.field_at[0] > 0;  // scales at the end of the row
  return kernels.interleaves && k > 0 && (!at_end || at.shift >= 5 || at.group >= k);
}

bool can_interleave(const Kernels& kernels, const Layout& at, size_t k) {
  return has_panels(kernels, at, k) && k % kernels.interleaves == 0;
}

}  // namespace fewbit
