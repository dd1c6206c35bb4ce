"""Functions that gates and activations apply, as WGSL: `act(kind, x)`, with the numbers of KINDS."""

from __future__ import annotations

KINDS = {
    name: number
    for number, name in enumerate(("none", "silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid", "swiglu_oai"))
}

# erfc by the expansion of its logarithm in Chebyshev polynomials: 1.2e-7 of its value everywhere.
ACTIVATIONS = """\
fn sigmoid(x: f32) -> f32 {
  let e = exp(-abs(x));
  return select(1.0, e, x < 0.0) / (1.0 + e);
}
fn erfc_of(x: f32) -> f32 {
  let z = abs(x);
  let t = 1.0 / (1.0 + 0.5 * z);
  let p = 1.00002368 + t * (0.37409196 + t * (0.09678418 + t * (-0.18628806 + t * (0.27886807 +
    t * (-1.13520398 + t * (1.48851587 + t * (-0.82215223 + t * 0.17087277)))))));
  let r = t * exp(-z * z - 1.26551223 + t * p);
  return select(r, 2.0 - r, x < 0.0);
}
fn tanh_of(x: f32) -> f32 {
  let e = exp(-2.0 * abs(x));
  let y = (1.0 - e) / (1.0 + e);
  return select(y, -y, x < 0.0);
}
fn act(kind: u32, x: f32) -> f32 {
  switch kind {
    case 1u: { return x * sigmoid(x); }
    case 2u: { return 0.5 * x * erfc_of(x * -0.7071067811865476); }
    case 3u: { return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x)); }
    case 4u: { return max(x, 0.0); }
    case 5u: { return max(x, 0.0) * max(x, 0.0); }
    case 6u: { return sigmoid(x); }
    default: { return x; }
  }
}
fn gated(kind: u32, gate: f32, up: f32) -> f32 {
  if (kind == 7u) {
    let g = min(gate, 7.0);
    return g * sigmoid(1.702 * g) * (clamp(up, -7.0, 7.0) + 1.0);
  }
  return act(kind, gate) * up;
}"""
