"""Numbers of field types as WGSL: words from any byte on, floats of 8, 16 and 32 bits as formats/decode.py has them."""

from __future__ import annotations

from ...errors import FormatError


def real(prefix: str, kind: str, at: str) -> str:
    """The number of a field type at a byte, as an expression of f32."""
    word = f"{prefix}_word({at})"
    low = f"({prefix}_bits({at}, 0u) & 255u)"
    match kind:
        case "f32":
            return f"bitcast<f32>({word})"
        case "f16":
            return f"unpack2x16float({word}).x"
        case "bf16":
            return f"bitcast<f32>({word} << 16u)"
        case "i8":
            return f"f32(bitcast<i32>({low} << 24u) >> 24u)"
        case "i16":
            return f"f32(bitcast<i32>({word} << 16u) >> 16u)"
        case "i32":
            return f"f32(bitcast<i32>({word}))"
        case "u8":
            return f"f32({low})"
        case "e8m0":
            return f"{prefix}_e8m0_half({low})"
        case "ue4m3":
            return f"{prefix}_ue4m3_half({low})"
        case "f8_e4m3":
            return f"{prefix}_f8_e4m3({low})"
    raise FormatError(f"fields of type {kind} have no decoder for WebGPU")


# A word from any byte on, its bits from a bit on, and the 8-bit floats of formats/decode.py.
READ = """\
fn PREFIX_word(at: u32) -> u32 {
  let s = (at & 3u) * 8u;
  return (PREFIX[at >> 2u] >> s) | ((PREFIX[(at >> 2u) + 1u] << 1u) << (31u - s));
}
fn PREFIX_bits(at: u32, bit: u32) -> u32 { return PREFIX_word(at + (bit >> 3u)) >> (bit & 7u); }
fn PREFIX_e8m0_half(e: u32) -> f32 {
  return bitcast<f32>(select((max(e, 1u) - 1u) << 23u, 0x200000u << min(e, 1u), e < 2u));
}
fn PREFIX_ue4m3_half(x: u32) -> f32 {
  let exponent = (x >> 3u) & 15u;
  let mantissa = f32(x & 7u);
  if (x == 0x7fu) { return 0.0; }
  if (exponent == 0u) { return mantissa * 0.0009765625; }
  return (1.0 + mantissa / 8.0) * bitcast<f32>((exponent + 119u) << 23u);
}
fn PREFIX_f8_e4m3(x: u32) -> f32 {
  let code = x & 0x7fu;
  let magnitude = 2.0 * PREFIX_ue4m3_half(code);
  return bitcast<f32>(select(bitcast<u32>(magnitude), 0x7fc00000u, code == 0x7fu) | ((x & 0x80u) << 24u));
}"""
