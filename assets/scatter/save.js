// Saving: the view as it stands, as SVG, PNG or CSV. All three are made in the browser; nothing is sent.

const SAVE_SCALE = 3; // pixels of the PNG for each on the screen
const SAVE_MARGIN = 12;
const SAVE_TITLE = 26; // px above a panel
const SAVE_LINE = 20; // px of a line of the legend
// The shapes that the raster stamps.
const SAVE_SHAPES = {
  circle: (x, y, r) => `<circle cx="${short(x)}" cy="${short(y)}" r="${short(r)}"`,
  square: (x, y, r) => `<rect x="${short(x - 0.886 * r)}" y="${short(y - 0.886 * r)}" width="${short(1.772 * r)}" height="${short(1.772 * r)}"`,
  triangle: (x, y, r) => `<path d="M${short(x)} ${short(y - 1.22 * r)}l${short(1.12 * r)} ${short(1.94 * r)}h${short(-2.24 * r)}z"`,
};

const escaped = (text) => String(text).replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
const unpacked = (pixel) => `#${[0, 8, 16].map((shift) => ((pixel >>> shift) & 255).toString(16).padStart(2, "0")).join("")}`;
const short = (value) => Math.round(value * 100) / 100;

/** Points of a panel that are shown, in drawing order: those greyed, the other active ones, and those selected. */
function savedGroups(scatter, plot) {
  const { visible, order, kept, film } = scatter;
  const panel = scatter.panelOf(plot);
  const active = scatter.active[panel];
  const present = film?.present[panel];
  const shown = [...order].filter((i) => visible[i] && (!present || present[i]) && Number.isFinite(plot.positions[2 * i]));
  const chosen = (i) => active[i] && kept.selected[i];
  return [shown.filter((i) => !active[i]), shown.filter((i) => active[i] && !chosen(i)), shown.filter(chosen)];
}

/** The points of a panel and their trails, in the painter's order, sizes and opacities. */
function savedMarks(scatter, plot) {
  const { kept, theme } = scatter;
  const panel = scatter.panelOf(plot);
  const styles = pointStyles(scatter, plot);
  const trails = trailOpacities(scatter);
  const colours = scatter.paint.of(panel);
  const draw = SAVE_SHAPES[scatter.panels[panel].shape];
  const [grey, background] = [css(theme.grey), css(theme.background)];
  const mark = (i, { radius, opacity }, colour = unpacked(colours[i])) =>
    `${draw(plot.positions[2 * i], plot.positions[2 * i + 1], radius)} fill="${colour}" fill-opacity="${short(opacity)}"/>`;
  const [greyed, others, chosen] = savedGroups(scatter, plot);
  const rim = rimmed(scatter);
  return [
    ...greyed.map((i) => mark(i, styles.greyed, grey)),
    ...savedTrails(scatter, plot, scatter.active[panel], trails.under),
    ...others.map((i) => mark(i, kept.selectedCount ? styles.faded : styles.plain)),
    ...savedTrails(scatter, plot, kept.selected, trails.over),
    ...chosen.flatMap((i) => [...(rim ? [mark(i, styles.halo, background)] : []), mark(i, styles.chosen)]),
  ];
}

/** The morph's trails of some points, a pixel of the screen wide. */
function savedTrails(scatter, plot, mask, opacity) {
  if (!plot.trails) return [];
  const colours = scatter.paint.of(scatter.panelOf(plot));
  const corners = [...plot.trails, plot.positions];
  const look = `fill="none" stroke-opacity="${short(opacity)}" stroke-width="${short(1 / scatter.ratio)}"`;
  const shown = [...scatter.order].filter((i) => mask[i] && scatter.visible[i]);
  return shown.map((i) => {
    const path = corners.map((places) => `${short(places[2 * i])},${short(places[2 * i + 1])}`).join(" ");
    return `<polyline points="${path}" ${look} stroke="${unpacked(colours[i])}"/>`;
  });
}

/** A canvas context's text calls as SVG, so that labels stand where the screen has them. */
class SavedText {
  constructor(context) {
    Object.assign(this, { context, parts: [] });
  }

  set font(font) {
    this.context.font = font;
  }

  measureText(text) {
    return this.context.measureText(text);
  }

  strokeText() {}

  fillText(text, x, y) {
    const rim = `paint-order="stroke" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}"`;
    this.parts.push(`<text x="${short(x)}" y="${short(y)}" opacity="${this.globalAlpha}" text-anchor="middle" dominant-baseline="central" font-weight="600" fill="${this.fillStyle}" ${rim}>${escaped(text)}</text>`);
  }
}

function savedPanel(scatter, plot, left, top) {
  const { theme } = scatter;
  const { title } = scatter.panels[scatter.panelOf(plot)];
  const note = plot.note?.textContent;
  const { width, height } = plot.plane;
  const labels = new SavedText(plot.overlayContext);
  paintLabels(scatter, plot, labels);
  const clip = `panel-${left}-${top}`;
  return [
    `<g transform="translate(${left} ${top})"><text y="16" font-weight="600" fill="${css(theme.text)}">${escaped([plot.morph ? `Morph: ${title}` : title, note].filter(Boolean).join(" · "))}</text>`,
    `<clipPath id="${clip}"><rect width="${width}" height="${height}"/></clipPath>`,
    `<g transform="translate(0 ${SAVE_TITLE})" clip-path="url(#${clip})">`,
    ...savedMarks(scatter, plot),
    ...labels.parts,
    `</g><rect y="${SAVE_TITLE}" width="${width}" height="${height}" fill="none" stroke="${css(theme.grey)}" stroke-opacity="0.5"/></g>`,
  ].join("\n");
}

function savedLegend({ colour, paint, theme }, top, width) {
  const ink = css(theme.text);
  const parts = [`<text x="${SAVE_MARGIN}" y="${top + 14}" font-weight="600" fill="${ink}">${escaped(colour.title)}</text>`];
  let [x, y] = [SAVE_MARGIN + 8 * colour.title.length + 16, top];
  const entries =
    colour.kind === "categorical"
      ? colour.names.map((name, category) => [name, css(paint.categories[category])])
      : [0, 0.25, 0.5, 0.75, 1].map((share) => [describeValue(colour, colour.low + share * (colour.high - colour.low)), css(ramp(colour.stops.map((hex) => parseColour(hex) ?? theme.grey), share))]);
  for (const [name, fill] of entries) {
    const wide = 7.5 * String(name).length + 30;
    if (x + wide > width && x > SAVE_MARGIN) [x, y] = [SAVE_MARGIN, y + SAVE_LINE];
    parts.push(`<circle cx="${x + 6}" cy="${y + 10}" r="5" fill="${fill}"/><text x="${x + 16}" y="${y + 14}" fill="${ink}">${escaped(name)}</text>`);
    x += wide;
  }
  return [parts.join("\n"), y + SAVE_LINE];
}

/** The view as one SVG document: panels as they stand on the screen, then the legend. */
function savedPicture(scatter) {
  const columns = Math.max(1, getComputedStyle(scatter.frame.grid).gridTemplateColumns.split(" ").length);
  const { width: side, height: tall } = scatter.plots[0].plane;
  const width = 2 * SAVE_MARGIN + columns * side + (columns - 1) * GAP;
  const row = SAVE_TITLE + tall + GAP;
  const panels = scatter.plots.map((plot, at) => savedPanel(scatter, plot, SAVE_MARGIN + (at % columns) * (side + GAP), SAVE_MARGIN + Math.floor(at / columns) * row));
  const [legend, bottom] = savedLegend(scatter, SAVE_MARGIN + Math.ceil(panels.length / columns) * row, width);
  const height = bottom + SAVE_MARGIN;
  const font = escaped(scatter.theme.font);
  const head = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="${font}" font-size="13">`;
  return { width, height, text: [head, `<rect width="100%" height="100%" fill="${css(scatter.theme.background)}"/>`, ...panels, legend, "</svg>"].join("\n") };
}

/** A cell of a table; what a spreadsheet would take for a formula begins with an apostrophe. */
function savedCell(value) {
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** The points that are shown as CSV: place in the view, selected or not, and coordinates and colour in every panel. */
function savedTable(scatter) {
  const { panels, colour, paint, kept } = scatter;
  const plots = scatter.plots.filter((plot) => !plot.morph);
  const measured = colour.kind === "continuous";
  const worth = (value) => (measured ? value : describeValue(colour, value));
  const head = ["point", "selected", ...plots.flatMap(({ panel }) => ["x", "y", measured ? `${colour.title}${colour.unit ? ` (${colour.unit})` : ""}` : colour.title].map((name) => `${panels[panel].title}: ${name}`))];
  const rows = [head];
  for (let i = 0; i < scatter.count; i++) {
    if (!scatter.visible[i]) continue;
    const values = plots.flatMap(({ panel, coordinates }) => [coordinates[2 * i], coordinates[2 * i + 1], worth(paint.valueAt(panel, i))]);
    rows.push([i, kept.selected[i] ? 1 : 0, ...values]);
  }
  return rows.map((row) => row.map(savedCell).join(",")).join("\n") + "\n";
}

function download(blob, ending) {
  const address = URL.createObjectURL(blob);
  make("a", { href: address, download: `features.${ending}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Save the view; a PNG is the SVG at three times its size. */
async function saveView(scatter, form) {
  if (!scatter.content) return;
  if (form === "csv") return download(new Blob([savedTable(scatter)], { type: "text/csv" }), form);
  const { width, height, text } = savedPicture(scatter);
  const vector = new Blob([text], { type: "image/svg+xml" });
  if (form === "svg") return download(vector, form);
  const image = new Image(width, height);
  image.src = URL.createObjectURL(vector);
  await image.decode();
  const canvas = make("canvas", { width: width * SAVE_SCALE, height: height * SAVE_SCALE });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  canvas.toBlob((blob) => download(blob, form), "image/png");
}
