// Points of grids are gathered.
template <class F>
struct LookUp {
  static constexpr bool can = false;
};
