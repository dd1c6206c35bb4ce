// What a target tells about itself, of what the namespace holds that this is included in, after its table.

constexpr Probes probes = {probe_read<false>, probe_read<true>, probe_int8, probe_f32, nullptr};

constexpr Target make_target(const char* name, bool (*available)(), const IntegerAttention* integers = nullptr,
                             size_t int16_rows = 0) {
  return {name,    available, kernels,  quantize_row, kv_weigh, kv_scale, kv_rotate, row_kernels, interleave_moves,
          nullptr, probes,    products, recurrent,    integers, nullptr,  int16_rows};
}
