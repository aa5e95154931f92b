// The elements of the view. Text from Python only ever becomes textContent or canvas text.

const SVG = "http://www.w3.org/2000/svg";
const ICONS = {
  box: "M3 6V3h3M10 3h3v3M13 10v3h-3M6 13H3v-3",
  lasso: "M8 3c3.3 0 5.5 1.5 5.5 3.6S11.3 10.2 8 10.2 2.5 8.7 2.5 6.6 4.7 3 8 3ZM5 9.8c-1.2.6-1.3 2 .1 2.1.9.1 1.1.9.5 1.6",
  pan: "M8 2v12M2 8h12M6.3 3.7 8 2l1.7 1.7M6.3 12.3 8 14l1.7-1.7M3.7 6.3 2 8l1.7 1.7M12.3 6.3 14 8l-1.7 1.7",
  out: "M4 8h8",
  in: "M4 8h8M8 4v8",
  reset: "M3.2 6.5A5 5 0 1 1 3 8.5M3 3.5v3.2h3.2",
  clear: "M4.5 4.5l7 7M11.5 4.5l-7 7",
  morph: "M2.5 11.5c3.5 0 3-7 7-7h3M10.5 2.5l2 2-2 2",
  play: "M5 3.5v9l7-4.5Z",
  pause: "M5.5 4v8M10.5 4v8",
  back: "M10 3.5 5.5 8l4.5 4.5",
  save: "M8 2.5v7.5M5 7l3 3 3-3M3 13h10",
  forth: "M6 3.5 10.5 8 6 12.5",
};
const GLYPHS = { circle: "M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3Z", square: "M3.6 3.6h8.8v8.8H3.6Z", triangle: "M8 2.5 13.8 12.7H2.2Z" };

/** Make an element: properties are set, attributes with a dash or "role" as attributes. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

function drawing(path, className) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", className);
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

const icon = (name) => drawing(ICONS[name], "icon");
const glyph = (shape) => drawing(GLYPHS[shape] ?? GLYPHS.circle, "glyph");

/** A button with an icon; `text` shows beside it, `label` is read out and shown as its hint. */
function iconButton(name, label, text = "") {
  const button = make("button", { type: "button", title: label, "aria-label": text || label }, icon(name));
  if (text) button.append(make("span", { textContent: text }));
  return button;
}

function setIcon(button, name) {
  button.querySelector(".icon").replaceWith(icon(name));
}

/** Build the frame once; panels and legend are filled by the view. */
function buildFrame(root) {
  const modes = {
    box: iconButton("box", "Select with a box (B)", "Box"),
    lasso: iconButton("lasso", "Select with a lasso (L)", "Lasso"),
    pan: iconButton("pan", "Move the plane (P), or drag while holding Space", "Pan"),
  };
  const zoomOut = iconButton("out", "Zoom out (−)");
  const zoomIn = iconButton("in", "Zoom in (+)");
  const reset = iconButton("reset", "Show all points (0)");
  const clear = iconButton("clear", "Clear the selection (Escape)", "Clear");
  const morph = iconButton("morph", "Show how the points move from state to state (M)", "Morph");
  const save = iconButton("save", "Save this view as SVG, PNG or CSV", "Save");
  save.setAttribute("aria-expanded", "false");
  const forms = Object.fromEntries(
    ["svg", "png", "csv"].map((form) => [form, make("button", { type: "button", textContent: form.toUpperCase(), title: `Save as ${form.toUpperCase()}` })]),
  );
  const formats = make("div", { className: "group", role: "group", "aria-label": "Save as", hidden: true }, ...Object.values(forms));
  const status = make("div", { className: "status" });
  const toolbar = make(
    "div",
    { className: "toolbar", role: "toolbar", "aria-label": "Feature view" },
    make("div", { className: "group", role: "group", "aria-label": "Pointer" }, ...Object.values(modes)),
    make("div", { className: "group", role: "group", "aria-label": "Zoom" }, zoomOut, zoomIn, reset),
    make("div", { className: "group" }, morph),
    make("div", { className: "group" }, save),
    formats,
    make("div", { className: "outcome" }, clear, status),
  );
  const legend = make("div", { className: "legend" });
  const grid = make("div", { className: "grid", tabIndex: 0, role: "application", "aria-label": "Linked feature view" });
  const card = make("div", { className: "card", hidden: true, "aria-hidden": "true" });
  const hint = make("div", { className: "hint", hidden: true, textContent: "Click the view, or hold Ctrl, to zoom with the wheel" });
  const live = make("div", { className: "unseen", role: "status", "aria-live": "polite" });
  const help = make("p", {
    className: "unseen",
    id: "scatter-help",
    textContent:
      "Arrow keys move to the next point, Enter selects it, Shift and Enter adds it, Alt and Enter removes it, Escape clears. " +
      "Plus and minus zoom, zero shows all points, Shift and arrow keys move the plane, digits choose the panel.",
  });
  grid.setAttribute("aria-describedby", help.id);
  root.replaceChildren(toolbar, legend, make("div", { className: "body" }, grid, hint, card), live, help);
  return { root, toolbar, legend, grid, card, hint, live, status, modes, zoomOut, zoomIn, reset, clear, morph, save, formats, forms };
}

/** Build one plot: its heading, the points below and the overlay (labels, brush, cursor) above. */
function buildPlot() {
  const points = make("canvas", { className: "points", role: "img" });
  const overlay = make("canvas", { className: "overlay", "aria-hidden": "true" });
  const mark = make("span", { className: "mark" });
  const title = make("span", { className: "title" });
  const note = make("span", { className: "note" });
  const stage = make("div", { className: "stage" }, points, overlay);
  const figure = make("figure", { className: "plot" }, make("figcaption", {}, mark, title, note), stage);
  return { figure, stage, points, overlay, mark, title, note };
}

/** Head a plot with its state: shape, title, figure. */
function titlePlot(plot, { title, shape, note }) {
  if (plot.headed === `${shape}\n${title}\n${note}`) return;
  plot.headed = `${shape}\n${title}\n${note}`;
  plot.mark.replaceChildren(glyph(shape));
  plot.title.textContent = title;
  plot.note.textContent = note;
}
