// K or V of 32 tokens of a head as matrix tiles want them, in the bytes that their rows would take: first the scales,
// `[block][token]`, then the codes. Two codes of four bits share a byte, both of one token: what is written for a token
// takes no part of what another one has. Tiles are read in the order in which they lie.
//
//   K          as tiles of 16 rows of 64 bytes, two for every 64 bytes of a token: four bytes of each of 16 tokens side
//              by side in a row. With 4 bits a byte holds one of 64 values in its first bits, one of the next 64 in the
//              others; of the last 64 of an odd number, one of 32 and one of 32, in tiles of 8 rows.
//   V          as tiles of 16 rows of 64 bytes, two for every two blocks: see value_line. With 4 bits they share one.
//
// Codes of four bits that stand for themselves less 8 lie with their first bit flipped: as signed numbers.

// The row of a tile of V that holds a token, with three others: tokens 0 to 3, 16 to 19, 4 to 7 and so on, in the order
// in which weights are packed.
constexpr size_t row_of_token(size_t token) { return token < 16 ? token / 4 * 2 : (token - 16) / 4 * 2 + 1; }
constexpr size_t first_token_of_row(size_t row) { return row / 2 * 4 + row % 2 * 16; }

template <class F>
struct KvTiled {
  using B = KvBlock<F>;
  static constexpr bool can() {
    if constexpr (B::can() && !B::plain) {
      if (F::offset.present || F::scale.real != Real::f16 || F::codes.times != 1 || F::codes.pieces(0) != 1)
        return false;
      const Run16 low = B::run(0, 0), high = B::run(0, 1);
      if (F::codes.bits() == 8) return high.at == low.at + 16;
      return F::codes.bits() == 4 && high.at == low.at && low.shift == 0 && high.shift == 4;
    } else {
      return false;
    }
  }
  static constexpr int per_byte = 8 / F::codes.bits();
  static constexpr bool is_signed4 = per_byte == 2 && F::codebook.used == 0 && F::codes.zero == 8;
  static constexpr uint8_t sign_mask = is_signed4 ? 0x88 : 0;
  static constexpr size_t block_bytes = 32 / per_byte, codes_in_block = static_cast<size_t>(B::run(0, 0).at);

  static size_t scale_at(size_t block, size_t token) { return (block * kKvTokens + token) * 2; }
  static size_t codes_at(size_t dim) { return scale_at(dim / 32, 0); }
  // Where byte number `byte` of a token of K lies. Four lie side by side; the next four are 64 bytes further on.
  static size_t key_place(size_t byte, size_t token, size_t dim) {
    const size_t first = byte / 64 * 64, left = dim / per_byte - first, rows = (left < 64 ? left : 64) / 4;
    return first * kKvTokens + (token / 16 * rows + byte % 64 / 4) * 64 + token % 16 * 4 + byte % 4;
  }
  // Where 16 values of a block lie, four tokens side by side.
  static size_t value_line(size_t block, size_t half, size_t token) {
    const size_t tile = per_byte == 1 ? block / 2 * 2 + half : block / 2;
    return tile * 1024 + (block % 2 * 8 + row_of_token(token)) * 64;
  }

  // Codes of a row, one to a byte, to the bytes of K, or back.
  template <class Fn>
  static void by_bytes(size_t dim, Fn&& f) {  // f(byte, value in the first bits, value in the others)
    for (size_t d = 0; d < dim; d += 128) {
      const size_t apart = d + 64 < dim ? 64 : 32;
      for (size_t i = 0; i < apart; ++i) f(d / 2 + i, d + i, d + apart + i);
    }
  }
  static void put_key(const uint8_t* row, size_t token, size_t dim, uint8_t* slab) {
    uint8_t* to = slab + codes_at(dim);
    const auto byte_of = [&](size_t value) {
      return row[value / 32 * F::bytes + codes_in_block + value % block_bytes];
    };
    if constexpr (per_byte == 1) {
      for (size_t d = 0; d < dim; ++d) to[key_place(d, token, dim)] = byte_of(d);
    } else {
      const auto code = [&](size_t value) { return byte_of(value) >> value % 32 / 16 * 4 & 15; };
      by_bytes(dim, [&](size_t i, size_t a, size_t b) {
        to[key_place(i, token, dim)] = static_cast<uint8_t>((code(a) | code(b) << 4) ^ sign_mask);
      });
    }
  }
  static void get_key(const uint8_t* slab, size_t token, size_t dim, uint8_t* row) {
    const uint8_t* from = slab + codes_at(dim);
    const auto byte_of = [&](size_t value) -> uint8_t& {
      return row[value / 32 * F::bytes + codes_in_block + value % block_bytes];
    };
    if constexpr (per_byte == 1) {
      for (size_t d = 0; d < dim; ++d) byte_of(d) = from[key_place(d, token, dim)];
    } else {
      uint8_t codes[kMostTiledDim];
      by_bytes(dim, [&](size_t i, size_t a, size_t b) {
        const uint8_t two = from[key_place(i, token, dim)] ^ sign_mask;
        codes[a] = two & 15;
        codes[b] = two >> 4;
      });
      for (size_t d = 0; d < dim; d += d % 32 == 15 ? 17 : 1) {
        byte_of(d) = static_cast<uint8_t>(codes[d] | codes[d + 16] << 4);
      }
    }
  }
  // A block of V, 16 bytes at a time: f(byte of the row, where it belongs).
  template <class Fn>
  static FEWBIT_INLINE void by_values(size_t token, size_t dim, Fn&& f) {
    for (size_t b = 0; b < dim / 32; ++b) {
      for (size_t half = 0; half < block_bytes / 16; ++half) {
        const size_t from = b * F::bytes + codes_in_block + 16 * half,
                     to = codes_at(dim) + value_line(b, half, token) + token % 4;
        for (size_t i = 0; i < 16; ++i) f(from + i, to + 4 * i);
      }
    }
  }
};

// A row of a token to its place, with or without the tokens around it.
template <class F>
void to_tiled(const uint8_t* row, size_t token, size_t dim, bool is_value, uint8_t* slab) {
  using T = KvTiled<F>;
  if (is_value)
    T::by_values(token, dim, [&](size_t from, size_t to) { slab[to] = row[from] ^ T::sign_mask; });
  else
    T::put_key(row, token, dim, slab);
  for (size_t b = 0; b < dim / 32; ++b) {
    std::memcpy(slab + T::scale_at(b, token), row + b * F::bytes + F::scale.at, 2);
  }
}
template <class F>
void from_tiled(const uint8_t* slab, size_t token, size_t dim, bool is_value, uint8_t* row) {
  using T = KvTiled<F>;
  if (is_value)
    T::by_values(token, dim, [&](size_t to, size_t from) { row[to] = slab[from] ^ T::sign_mask; });
  else
    T::get_key(slab, token, dim, row);
  for (size_t b = 0; b < dim / 32; ++b) {
    std::memcpy(row + b * F::bytes + F::scale.at, slab + T::scale_at(b, token), 2);
  }
}
