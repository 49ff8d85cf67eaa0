"""A filter in constant memory over an image."""

from __future__ import annotations

import torch


def reference(p, t):
    image, weights = t["input"][None, None], t["d_filter"][None, None]
    return {"output": torch.nn.functional.conv2d(image, weights)[0, 0]}


REFERENCE_H = """
const int w = image_width + filter_width - 1;
for (int y = 0; y < image_height; y++)
  for (int x = 0; x < image_width; x++) {
    double sum = 0;
    for (int i = 0; i < filter_height; i++)
      for (int j = 0; j < filter_width; j++) sum += input[(y + i) * w + x + j] * d_filter[i * filter_width + j];
    output[y * image_width + x] = sum;
  }
"""
TOLERANCE = {"output": (0.05, 0.001)}
PROBLEM = "256,256"
WRONG_INDEX = ("d_filter[i*filter_width+j]", "d_filter[j*filter_width+i]")
