"""Guards for memory maps: pages of a file that was truncated read as zeros, instead of ending the process."""

from __future__ import annotations

from ... import _native

guard_map, map_failed, unguard_map = _native.guard_map, _native.map_failed, _native.unguard_map
