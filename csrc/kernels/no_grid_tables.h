// Points of grids are gathered.
template <class F>
struct GridTables {
  static constexpr bool can = false;
};
