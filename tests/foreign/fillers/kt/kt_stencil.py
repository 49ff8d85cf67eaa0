"""The mean of a point and its four neighbours; the border keeps its values."""

from __future__ import annotations


def reference(p, t):
    x, new = t["x_old"], t["x_new"].clone()
    around = x[1:-1, :-2] + x[1:-1, 2:] + x[2:, 1:-1] + x[:-2, 1:-1]
    new[1:-1, 1:-1] = (x[1:-1, 1:-1] + around) / 5
    return {"x_new": new}


REFERENCE_H = """
const int w = domain_width, h = domain_height;
for (int y = 0; y < h; y++)
  for (int x = 0; x < w; x++) {
    const int i = y * w + x;
    const bool inside = y > 0 && y < h - 1 && x > 0 && x < w - 1;
    x_new_out[i] = inside ? (x_old[i] + x_old[i - 1] + x_old[i + 1] + x_old[i + w] + x_old[i - w]) / 5 : x_new[i];
  }
"""
TOLERANCE = {"x_new": (0.0001, 0.0001)}
PROBLEM = "4096,2048"
WRONG_INDEX = ("(y-1) * domain_width", "(y-2 < 0 ? 0 : y-2) * domain_width")
