// Raster: points and lines blended straight into the pixels of an ImageData. Stamps are made once a size, so a point costs a
// few dozen integer operations whatever the graphics card.

const SUBPIXELS = 4;
const SAMPLES = 4;

// Shapes of about equal area: is (x, y), in radii, inside?
const SHAPES = {
  circle: (x, y) => x * x + y * y <= 1,
  square: (x, y) => Math.abs(x) <= 0.886 && Math.abs(y) <= 0.886,
  triangle: (x, y) => y <= 0.72 && y >= -1.22 + Math.abs(x) * 1.732,
};

/**
 * Make the stamps of a shape: one for each quarter-pixel offset in x and y.
 * Each is { dx, dy, offset, weight } over its covered pixels; weight 256 is opaque; `reach` bounds |dx| and |dy|.
 */
function makeStamps(shape, radius, alpha, stride) {
  const inside = SHAPES[shape];
  const reach = Math.ceil(radius * 1.3) + 1;
  const stamps = [];
  for (let fy = 0; fy < SUBPIXELS; fy++) {
    for (let fx = 0; fx < SUBPIXELS; fx++) {
      const cells = [];
      for (let dy = -reach; dy <= reach; dy++) {
        for (let dx = -reach; dx <= reach; dx++) {
          const weight = Math.round(256 * alpha * coverage(inside, radius, dx - fx / SUBPIXELS, dy - fy / SUBPIXELS));
          if (weight > 0) cells.push([dx, dy, weight]);
        }
      }
      stamps.push({
        dx: Int32Array.from(cells, (cell) => cell[0]),
        dy: Int32Array.from(cells, (cell) => cell[1]),
        offset: Int32Array.from(cells, (cell) => cell[1] * stride + cell[0]),
        weight: Int32Array.from(cells, (cell) => cell[2]),
      });
    }
  }
  return { stamps, reach };
}

/** Share of the unit pixel at (x, y) that the shape covers. */
function coverage(inside, radius, x, y) {
  let hits = 0;
  for (let j = 0; j < SAMPLES; j++) {
    for (let i = 0; i < SAMPLES; i++) {
      if (inside((x + (i + 0.5) / SAMPLES) / radius, (y + (j + 0.5) / SAMPLES) / radius)) hits++;
    }
  }
  return hits / (SAMPLES * SAMPLES);
}

/** Blend one packed colour over a pixel; weight 0 to 256. Both red and blue ride in one multiplication. */
function blend(pixels, at, colour, weight) {
  if (weight >= 256) {
    pixels[at] = colour;
    return;
  }
  const under = pixels[at];
  const rest = 256 - weight;
  const redBlue = ((Math.imul(under & 0xff00ff, rest) + Math.imul(colour & 0xff00ff, weight)) >>> 8) & 0xff00ff;
  const green = ((Math.imul(under & 0xff00, rest) + Math.imul(colour & 0xff00, weight)) >>> 8) & 0xff00;
  pixels[at] = 0xff000000 | redBlue | green;
}

/** Stamp a point at device pixels (x, y). */
function stampPoint(surface, { stamps, reach }, x, y, colour) {
  const { pixels, width, height } = surface;
  const left = Math.floor(x);
  const top = Math.floor(y);
  if (left < -reach || top < -reach || left >= width + reach || top >= height + reach) return;
  const stamp = stamps[Math.floor((y - top) * SUBPIXELS) * SUBPIXELS + Math.floor((x - left) * SUBPIXELS)];
  const { offset, weight } = stamp;
  if (left >= reach && top >= reach && left < width - reach && top < height - reach) {
    const origin = top * width + left;
    for (let i = 0; i < offset.length; i++) blend(pixels, origin + offset[i], colour, weight[i]);
    return;
  }
  for (let i = 0; i < offset.length; i++) {
    const column = left + stamp.dx[i];
    const row = top + stamp.dy[i];
    if (column >= 0 && row >= 0 && column < width && row < height) blend(pixels, row * width + column, colour, weight[i]);
  }
}

/** Blend a line, one pixel wide and smooth across its direction. Device pixels; weight 0 to 256. */
function strokeLine(surface, x0, y0, x1, y1, colour, weight) {
  const { pixels, width, height } = surface;
  const steep = Math.abs(y1 - y0) > Math.abs(x1 - x0);
  const length = Math.ceil(Math.max(Math.abs(x1 - x0), Math.abs(y1 - y0)));
  const stepX = length ? (x1 - x0) / length : 0;
  const stepY = length ? (y1 - y0) / length : 0;
  const [limitX, limitY] = steep ? [width - 1, height] : [width, height - 1];
  for (let i = 0; i < length; i++) {
    const x = x0 + stepX * i;
    const y = y0 + stepY * i;
    const column = Math.floor(x);
    const row = Math.floor(y);
    if (column < 0 || row < 0 || column >= limitX || row >= limitY) continue;
    const far = Math.round(weight * (steep ? x - column : y - row));
    const at = row * width + column;
    if (weight - far > 0) blend(pixels, at, colour, weight - far);
    if (far > 0) blend(pixels, at + (steep ? 1 : width), colour, far);
  }
}
