// Plane: from projection units to pixels, one transform for all panels, and the geometry of brushes.

const MARGIN = 18; // css px kept free around the points at zoom 1
const ZOOM_LIMITS = [0.5, 60];

const centreOf = ([left, bottom, right, top]) => [(left + right) / 2, (bottom + top) / 2];

/** Pixels (css) per projection unit: equal on both axes. */
function scaleOf(bounds, zoom, width, height) {
  const across = Math.max(bounds[2] - bounds[0], 1e-9);
  const up = Math.max(bounds[3] - bounds[1], 1e-9);
  return zoom * Math.min(Math.max(width - 2 * MARGIN, 20) / across, Math.max(height - 2 * MARGIN, 20) / up);
}

/** Project (n, 2) coordinates into `out`, in pixels of a plot of the given size. */
function project(coordinates, out, { centre, scale, width, height }) {
  const offsetX = width / 2 - centre[0] * scale;
  const offsetY = height / 2 + centre[1] * scale;
  for (let i = 0; i < coordinates.length; i += 2) {
    out[i] = offsetX + coordinates[i] * scale;
    out[i + 1] = offsetY - coordinates[i + 1] * scale;
  }
}

/** Zoom by a factor, keeping the point under (x, y) in place; css px relative to the plot. */
function zoomAround(lens, factor, x, y, plane) {
  const zoom = Math.min(Math.max(lens.zoom * factor, ZOOM_LIMITS[0]), ZOOM_LIMITS[1]);
  const before = plane.scale;
  const after = (before * zoom) / lens.zoom;
  const [dx, dy] = [x - plane.width / 2, y - plane.height / 2];
  lens.centre = [lens.centre[0] + dx / before - dx / after, lens.centre[1] - dy / before + dy / after];
  lens.zoom = zoom;
}

/** Mark the active points inside a box [x0, y0, x1, y1]. */
function hitsInBox(positions, active, [x0, y0, x1, y1], hits) {
  const [left, right] = x0 < x1 ? [x0, x1] : [x1, x0];
  const [top, bottom] = y0 < y1 ? [y0, y1] : [y1, y0];
  for (let i = 0; i < hits.length; i++) {
    const x = positions[2 * i];
    const y = positions[2 * i + 1];
    hits[i] = active[i] && x >= left && x <= right && y >= top && y <= bottom ? 1 : 0;
  }
}

/** Mark the active points inside a closed polygon of flat [x, y, …], by the even-odd rule. */
function hitsInLasso(positions, active, polygon, hits) {
  const xs = polygon.filter((_, at) => at % 2 === 0);
  const ys = polygon.filter((_, at) => at % 2 === 1);
  const frame = [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];
  hitsInBox(positions, active, frame, hits);
  for (let i = 0; i < hits.length; i++) {
    if (hits[i] && !insidePolygon(xs, ys, positions[2 * i], positions[2 * i + 1])) hits[i] = 0;
  }
}

function insidePolygon(xs, ys, x, y) {
  let inside = false;
  for (let i = 0, j = xs.length - 1; i < xs.length; j = i++) {
    if (ys[i] > y !== ys[j] > y && x < ((xs[j] - xs[i]) * (y - ys[i])) / (ys[j] - ys[i]) + xs[i]) inside = !inside;
  }
  return inside;
}

/** The active point nearest to (x, y) within `reach`, or -1. */
function nearestPoint(positions, active, x, y, reach) {
  let best = -1;
  let least = reach * reach;
  for (let i = 0; i < active.length; i++) {
    if (!active[i]) continue;
    const dx = positions[2 * i] - x;
    const dy = positions[2 * i + 1] - y;
    const distance = dx * dx + dy * dy;
    if (distance <= least) [best, least] = [i, distance];
  }
  return best;
}

/** The nearest active point from point `from` in a direction (unit vector), within 45° of it; `from` when there is none. */
function nextPoint(positions, active, from, [ux, uy]) {
  let best = from;
  let least = Infinity;
  for (let i = 0; i < active.length; i++) {
    if (!active[i] || i === from) continue;
    const dx = positions[2 * i] - positions[2 * from];
    const dy = positions[2 * i + 1] - positions[2 * from + 1];
    const along = dx * ux + dy * uy;
    const aside = Math.abs(dx * uy - dy * ux);
    if (along <= 0 || aside > along) continue;
    const cost = along + 2 * aside;
    if (cost < least) [best, least] = [i, cost];
  }
  return best;
}

/** Median of each category's points, [x, y] or null, over the active points. */
function categoryMedians(coordinates, categories, active, count) {
  const members = Array.from({ length: count }, () => [[], []]);
  for (let i = 0; i < active.length; i++) {
    const group = active[i] ? members[categories[i]] : undefined;
    if (!group) continue;
    group[0].push(coordinates[2 * i]);
    group[1].push(coordinates[2 * i + 1]);
  }
  return members.map(([xs, ys]) => {
    if (!xs.length) return null;
    const middle = xs.length >> 1;
    return { at: [xs, ys].map((values) => Float64Array.from(values).sort()[middle]), size: xs.length };
  });
}

/** A fixed shuffle of 0 … n − 1, so that no category is always drawn over another. */
function drawingOrder(count) {
  const order = Uint32Array.from({ length: count }, (_, i) => i);
  let state = 12345;
  for (let i = count - 1; i > 0; i--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const j = Math.floor((state / 2 ** 32) * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}
