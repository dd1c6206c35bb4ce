// The pages of a plan's layers, by group, and the page tables that a step brings for them.
#pragma once
#include <vector>

#include "bindings.h"

namespace fewbit {

constexpr size_t kMaxGroups = 1024;

class PageGroups {
 public:
  // A layer of a group: all of them have as many pages, and these as many tokens.
  void add(size_t group, size_t pages, size_t page_tokens) {
    expect(group < kMaxGroups, "number of a group, at most", group, kMaxGroups - 1);
    if (pages == 0) throw std::invalid_argument("a store needs at least one page");
    if (group >= groups_.size()) groups_.resize(group + 1);
    Pages& own = groups_[group];
    if (own.count == 0) own = {pages, page_tokens};
    expect(pages == own.count, "pages", pages, own.count);
    expect(page_tokens == own.tokens, "tokens of a page", page_tokens, own.tokens);
  }
  // (tables, table_starts) of each group; of those that no operation reads, anything.
  std::vector<PageTables> tables(const nb::tuple& groups, const Int64s& lengths) const {
    expect(groups.size() >= groups_.size(), "groups of page tables", groups.size(), groups_.size());
    std::vector<PageTables> out(groups_.size());
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].count == 0) continue;
      nb::tuple pair;
      Int32s tables;
      Int64s starts;
      if (!nb::try_cast(groups[g], pair, false) || pair.size() != 2 || !nb::try_cast(pair[0], tables, false) ||
          !nb::try_cast(pair[1], starts, false)) {
        throw std::invalid_argument("group " + std::to_string(g) +
                                    " must be a tuple of page tables (int32) and starts (int64)");
      }
      out[g] = tables_of(tables, starts, lengths, groups_[g].count, groups_[g].tokens);
    }
    return out;
  }

 private:
  struct Pages {
    size_t count = 0, tokens = 0;
  };
  std::vector<Pages> groups_;
};

}  // namespace fewbit
