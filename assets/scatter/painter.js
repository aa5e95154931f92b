// Painting: a cached layer of all points a plot, the selected points over it, and an overlay of labels, brush and cursor.
// Work asked for within a frame is done once, and only from the deepest layer that changed.

const LEVELS = { overlay: 1, top: 2, base: 3, plane: 4, layout: 5 };
const HALO_UP_TO = 6000; // more selected points than this are drawn without a rim
const LABELS_UP_TO = 24;
const FEW = 12; // points of a category that its name would hide, where it stood upon them
const LABEL_SIZE = 12;
const SHARE_OF_SCREEN = 0.42; // that panels are high at most, so that what is selected in them is on the screen too
const LOWEST = 240; // css px

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** Radius (css px) and opacity of a point: smaller and more transparent the more there are. */
function pointStyle(count, zoom, side) {
  const doublings = Math.log2(Math.max(count, 250) / 250);
  const small = clamp(Math.sqrt(side / 360), 0.72, 1);
  return {
    radius: Math.max(1.2, clamp(4.3 - 0.48 * doublings, 1.4, 4.2) * small * clamp(zoom ** 0.22, 0.8, 1.8)),
    alpha: clamp(clamp(0.92 - 0.085 * doublings, 0.34, 0.86) * clamp(zoom ** 0.2, 1, 1.5), 0, 0.95),
  };
}

/** Radius (css px) and opacity of points as they are drawn: those greyed, the others, and selected ones with their rim. */
function pointStyles({ shownCount, kept }, { plane }) {
  const { radius, alpha } = pointStyle(shownCount, kept.lens.zoom, plane.height);
  return {
    plain: { radius, opacity: alpha },
    faded: { radius, opacity: 0.2 * alpha },
    greyed: { radius: 0.85 * radius, opacity: 0.3 * alpha },
    halo: { radius: 1.15 * radius + 1, opacity: 0.9 },
    chosen: { radius: 1.15 * radius, opacity: 1 },
  };
}

/** Opacity of trails under the points, and of those of selected points, over them. */
function trailOpacities(scatter) {
  const opacity = scatter.trailOpacity();
  return { under: scatter.kept.selectedCount ? 0.05 : opacity, over: Math.max(0.3, 1.8 * opacity) };
}

const rimmed = ({ kept }) => kept.selectedCount <= HALO_UP_TO;

/** Give a plot's canvases the size they are shown at, in device pixels. */
function fitCanvas(plot, width, height, ratio) {
  const [across, down] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (plot.points.width === across && plot.points.height === down && plot.surface) return;
  for (const canvas of [plot.points, plot.overlay]) [canvas.width, canvas.height] = [across, down];
  plot.pointsContext = plot.points.getContext("2d", { alpha: false });
  plot.overlayContext = plot.overlay.getContext("2d");
  plot.image = plot.pointsContext.createImageData(across, down);
  plot.surface = { pixels: new Uint32Array(plot.image.data.buffer), width: across, height: down };
  plot.base = new Uint32Array(across * down);
}

/** Stamps of the styles in use; remade only when a size changes. */
function stampsFor(scatter, plot) {
  const { ratio } = scatter;
  const styles = pointStyles(scatter, plot);
  const { radius, opacity } = styles.plain;
  const { shape } = scatter.panels[scatter.panelOf(plot)];
  const stride = plot.surface.width;
  const name = [shape, radius.toFixed(2), opacity.toFixed(2), ratio, stride].join();
  if (plot.stampName === name) return plot.stamps;
  const made = Object.entries(styles).map(([style, own]) => [style, makeStamps(shape, own.radius * ratio, own.opacity, stride)]);
  plot.stampName = name;
  plot.stamps = { radius, ...Object.fromEntries(made) };
  return plot.stamps;
}

function paintBase(scatter, plot) {
  const { theme, kept, visible, order, ratio } = scatter;
  const { surface, positions } = plot;
  const stamps = stampsFor(scatter, plot);
  const panel = scatter.panelOf(plot);
  const active = scatter.active[panel];
  const colours = scatter.paint.of(panel);
  const grey = packColour(theme.grey);
  const present = scatter.film?.present[panel];
  surface.pixels.fill(packColour(theme.background));
  for (const i of order) {
    if (visible[i] && !active[i] && (!present || present[i])) stampPoint(surface, stamps.greyed, positions[2 * i] * ratio, positions[2 * i + 1] * ratio, grey);
  }
  if (plot.trails) paintTrails(scatter, plot, active, trailOpacities(scatter).under);
  const stamp = kept.selectedCount ? stamps.faded : stamps.plain;
  for (const i of order) {
    if (active[i]) stampPoint(surface, stamp, positions[2 * i] * ratio, positions[2 * i + 1] * ratio, colours[i]);
  }
  plot.base.set(surface.pixels);
  plot.baseFaded = kept.selectedCount > 0;
}

function paintTop(scatter, plot) {
  const { kept, order, ratio, theme } = scatter;
  const { surface, positions, stamps } = plot;
  surface.pixels.set(plot.base);
  if (kept.selectedCount) {
    const panel = scatter.panelOf(plot);
    const active = scatter.active[panel];
    const colours = scatter.paint.of(panel);
    const rim = rimmed(scatter);
    const background = packColour(theme.background);
    if (plot.trails) paintTrails(scatter, plot, kept.selected, trailOpacities(scatter).over);
    for (const i of order) {
      if (!kept.selected[i] || !active[i]) continue;
      const [x, y] = [positions[2 * i] * ratio, positions[2 * i + 1] * ratio];
      if (rim) stampPoint(surface, stamps.halo, x, y, background);
      stampPoint(surface, stamps.chosen, x, y, colours[i]);
    }
  }
  plot.pointsContext.putImageData(plot.image, 0, 0);
}

/** Lines from where the morph starts, through the states passed, to where each point is now. */
function paintTrails(scatter, plot, mask, opacity) {
  const { ratio, order } = scatter;
  const colours = scatter.paint.of(scatter.panelOf(plot));
  const weight = Math.round(256 * opacity);
  plot.trails.forEach((from, segment) => {
    const to = plot.trails[segment + 1] ?? plot.positions;
    for (const i of order) {
      if (!mask[i] || !scatter.visible[i]) continue;
      const [x, y] = [2 * i, 2 * i + 1];
      strokeLine(plot.surface, from[x] * ratio, from[y] * ratio, to[x] * ratio, to[y] * ratio, colours[i], weight);
    }
  });
}

function paintOverlay(scatter, plot) {
  const { ratio, theme, gesture } = scatter;
  const { overlayContext: context, plane } = plot;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, plane.width, plane.height);
  paintLabels(scatter, plot, context);
  if (gesture?.plot === plot && gesture.outline) paintBrush(context, gesture, theme);
  if (scatter.hovered >= 0) paintRing(context, plot, scatter.hovered, theme.text, 1.5);
  if (scatter.cursor >= 0 && scatter.cursorShown) paintRing(context, plot, scatter.cursor, theme.primary, 2.5);
}

function paintRing(context, plot, index, colour, line) {
  context.beginPath();
  context.arc(plot.positions[2 * index], plot.positions[2 * index + 1], plot.stamps.radius + 4, 0, 2 * Math.PI);
  context.lineWidth = line;
  context.strokeStyle = css(colour);
  context.stroke();
}

function paintBrush(context, { outline, kind }, { text }) {
  context.beginPath();
  if (kind === "box") {
    const [x0, y0, x1, y1] = outline;
    context.rect(Math.min(x0, x1), Math.min(y0, y1), Math.abs(x1 - x0), Math.abs(y1 - y0));
  } else {
    for (let at = 0; at < outline.length; at += 2) context.lineTo(outline[at], outline[at + 1]);
    context.closePath();
  }
  context.fillStyle = css(text, 0.06);
  context.fill();
  context.lineWidth = 1.25;
  context.setLineDash([5, 3]);
  context.strokeStyle = css(text, 0.75);
  context.stroke();
  context.setLineDash([]);
}

/** Category names at their medians, the largest first; a name that would cover another is moved or left out. */
function paintLabels(scatter, plot, context) {
  const { colour, theme, kept } = scatter;
  if (colour.kind !== "categorical" || !colour.centroids) return;
  const [, names] = scatter.named(scatter.panelOf(plot));
  const focus = names === colour.names ? kept.focus : null;
  if (names.length > LABELS_UP_TO && focus === null) return;
  context.font = `600 ${plot.plane.width < 240 ? LABEL_SIZE - 1 : LABEL_SIZE}px ${theme.font}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineJoin = "round";
  context.globalAlpha = kept.selectedCount ? 0.6 : 1;
  const taken = [];
  for (const { category, at, size } of scatter.mediansOf(plot)) {
    if (focus !== null && focus !== category) continue;
    const [x, y] = plot.toPixels(at);
    const half = context.measureText(names[category]).width / 2 + 3;
    const place = freePlace(taken, clamp(x, half, Math.max(half, plot.plane.width - half)), y, half, plot.plane, size);
    if (!place) continue;
    context.lineWidth = 3.5;
    context.strokeStyle = css(theme.background, 0.86);
    context.strokeText(names[category], place.x, place.y);
    context.fillStyle = css(theme.text);
    context.fillText(names[category], place.x, place.y);
  }
  context.globalAlpha = 1;
}

function freePlace(taken, x, y, half, plane, size) {
  for (const shift of size > FEW ? [0, -15, 15, -29, 29] : [-15, 15, -29, 29, 0]) {
    const box = { x, y: y + shift, half };
    if (box.y < 8 || box.y > plane.height - 8) continue;
    const clash = taken.some((other) => Math.abs(other.y - box.y) < 14 && Math.abs(other.x - x) < other.half + half);
    if (clash) continue;
    taken.push(box);
    return box;
  }
  return null;
}

/** Paint what was asked for, in all plots; points of plots that stand still while a film is scrubbed stay as they are. */
function paintAll(scatter, level, scrub) {
  if (level >= LEVELS.layout) layOut(scatter);
  for (const plot of scatter.plots) {
    if (!scrub || scatter.film.panels[plot.panel].moves) paintPoints(scatter, plot, level);
    paintOverlay(scatter, plot);
  }
}

function paintPoints(scatter, plot, level) {
  if (level >= LEVELS.plane) placePoints(scatter, plot);
  if (level >= LEVELS.base || (level >= LEVELS.top && plot.baseFaded !== scatter.kept.selectedCount > 0)) paintBase(scatter, plot);
  if (level >= LEVELS.top) paintTop(scatter, plot);
}

/** Project the points of a plot (and of the morph's passed states) into css px. */
function placePoints(scatter, plot) {
  const { lens } = scatter.kept;
  const { width, height } = plot.plane;
  const scale = scaleOf(scatter.content.header.bounds, lens.zoom, width, height);
  plot.plane = { width, height, scale, centre: lens.centre };
  if (plot.morph) moveMorph(scatter, plot);
  if (plot.positions?.length !== plot.coordinates.length) plot.positions = new Float32Array(plot.coordinates.length);
  project(plot.coordinates, plot.positions, plot.plane);
  if (plot.morph) placeTrails(scatter, plot);
  plot.toPixels = ([x, y]) => [width / 2 + (x - lens.centre[0]) * scale, height / 2 - (y - lens.centre[1]) * scale];
}

const GAP = 14;
const COMFORTABLE = 250; // css px that a panel wants

/** Share the width among the plots and size their canvases. */
function layOut(scatter) {
  const { grid } = scatter.frame;
  const width = grid.clientWidth;
  if (!width) return;
  const count = scatter.plots.length;
  const fitting = Math.floor((width + GAP) / (COMFORTABLE + GAP));
  const least = width >= 300 ? 2 : 1;
  let columns = clamp(fitting, Math.min(least, count), count);
  if (columns === 3 && count === 4) columns = 2;
  grid.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  scatter.ratio = Math.min(globalThis.devicePixelRatio || 1, 3);
  const side = Math.floor((width - GAP * (columns - 1)) / columns) - 2;
  const short = Math.max(LOWEST, Math.floor(SHARE_OF_SCREEN * (globalThis.innerHeight || Infinity)));
  const height = Math.min(scatter.height, Math.max(side, 120), short);
  grid.dataset.narrow = String(side < 220);
  for (const plot of scatter.plots) {
    plot.stage.style.height = `${height}px`;
    plot.plane = { ...plot.plane, width: side, height };
    fitCanvas(plot, side, height, scatter.ratio);
  }
}
