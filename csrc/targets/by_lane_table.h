// The kernels of kernels/by_lane.h, for a table. Included after targets/counted.h.

template <class F>
void use_by_lane_panels(LaneKernels& out) {
  out.pack = pack_panels<F>;
  out.panels = Counted<by_lane_panels<F>>::call;
  out.least_panels = Own<F>::type::least_panels;
  out.scratch_bytes = Own<F>::type::panel_k_blocks * sizeof(typename LanePanel<F>::Tile);
}
template <class F>
void use_by_lane(LaneKernels& out) {
  out.set_bytes = LaneColumns<F>::bytes;
  out.skinny = Counted<by_lane_rows<F>>::call;
  use_by_lane_panels<F>(out);
}
