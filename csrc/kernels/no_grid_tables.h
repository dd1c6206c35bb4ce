// Points of grids are read from memory.
template <class F>
struct GridTables {
  static constexpr bool can = false;
};
