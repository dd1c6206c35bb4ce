// The kernels of kernels/by_lane.h, for a table. Included after targets/counted.h.

template <class F>
void use_lane_panels(LaneKernels& out) {
  out.pack = pack_panels<F>;
  out.many = Counted<by_lane_panels<F>>::call;
  out.least_many = Own<F>::type::least_panels;
  out.scratch_bytes = Own<F>::type::panel_spans * sizeof(typename LanePanel<F>::Tile);
}
template <class F>
void use_lanes(LaneKernels& out) {
  out.set_bytes = LaneColumns<F>::bytes;
  out.few = Counted<by_lane_rows<F>>::call;
  use_lane_panels<F>(out);
}
