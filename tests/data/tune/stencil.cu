// A 3 x 3 stencil with zeros outside the image: a thread computes ROWS elements of a column.
__global__ void stencil(const float* image, const float* weights, float* result, int height, int width) {
  int x = blockIdx.x * TILE_X + threadIdx.x, first = (blockIdx.y * TILE_Y + threadIdx.y) * ROWS;
  for (int y = first; y < first + ROWS && y < height && x < width; y++) {
    float total = 0;
    for (int dy = -1; dy <= 1; dy++)
      for (int dx = -1; dx <= 1; dx++)
        if (y + dy >= 0 && y + dy < height && x + dx >= 0 && x + dx < width)
          total += weights[3 * (dy + 1) + dx + 1] * image[(y + dy) * width + x + dx];
    result[y * width + x] = total;
  }
}
