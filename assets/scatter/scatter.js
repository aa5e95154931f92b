// The view itself: takes packets, keeps state, asks for painting. Streamlit calls the default export again whenever data or
// theme change; what the person has set up is kept.

const INSTANCE = Symbol.for("mergelens.scatter.instance");
const KEPT_VIEWS = 12;
const HINT_MS = 1600;

class Scatter {
  constructor(root) {
    this.root = root;
    this.frame = buildFrame(root);
    this.filmBar = buildFilmBar(this);
    this.filmFacts = buildFilmFacts(this);
    root.prepend(this.filmBar);
    this.frame.live.before(this.filmFacts);
    this.plots = [];
    this.panelPlots = [];
    this.pointers = new Map();
    this.legendEntries = [];
    this.hovered = this.cursor = -1;
    this.ratio = 1;
    this.stamp = 0;
    this.pending = 0;
    this.wire();
  }

  wire() {
    const { frame } = this;
    for (const [mode, button] of Object.entries(frame.modes)) button.onclick = () => this.setMode(mode);
    frame.zoomIn.onclick = () => this.content && zoom(this, ZOOM_STEP);
    frame.zoomOut.onclick = () => this.content && zoom(this, 1 / ZOOM_STEP);
    frame.reset.onclick = () => this.content && this.resetLens();
    frame.clear.onclick = () => clearSelection(this);
    frame.morph.onclick = () => this.toggleMorph();
    frame.save.onclick = () => {
      frame.formats.hidden = !frame.formats.hidden;
      frame.save.setAttribute("aria-expanded", String(!frame.formats.hidden));
    };
    for (const [form, button] of Object.entries(frame.forms)) button.onclick = () => saveView(this, form);
    frame.grid.onkeydown = (event) => keyPressed(this, event);
    frame.grid.onkeyup = (event) => keyReleased(this, event);
    frame.grid.onblur = () => {
      this.spaceHeld = this.cursorShown = false;
      delete this.root.dataset.keys;
      if (this.content) this.showMode();
      if (this.content && this.hovered < 0) showCard(this, null, -1);
      this.request("overlay");
    };
  }

  /** Listen to what may change outside; undone when the component leaves the page. */
  connect() {
    if (this.connected) return;
    this.connected = true;
    this.onArrival = () => this.awaits() && this.receiveContent();
    exchange.arrivals.addEventListener("packet", this.onArrival);
    this.observer = new ResizeObserver(() => this.request("layout"));
    this.observer.observe(this.frame.grid);
    this.followScreen();
  }

  /** Lay out anew where pixels are of another size, which no size in css px need tell: on another screen, or zoomed. */
  followScreen() {
    this.screen = matchMedia(`(resolution: ${globalThis.devicePixelRatio || 1}dppx)`);
    this.screen.onchange = () => {
      this.screen.onchange = null;
      this.followScreen();
      this.request("layout");
    };
  }

  disconnect() {
    this.connected = false;
    exchange.arrivals.removeEventListener("packet", this.onArrival);
    this.observer.disconnect();
    this.screen.onchange = null;
    stopMorph(this);
    stopFilm(this);
    cancelAnimationFrame(this.frameRequest);
    this.frameRequest = null;
  }

  update({ data, setStateValue }) {
    this.setStateValue = setStateValue;
    this.packet = readPacket(data);
    const { header } = this.packet;
    Object.assign(this, { panels: header.panels, noun: header.noun, height: header.height, stages: header.morph });
    this.kept = keepFor(header);
    this.receiveContent();
  }

  awaits() {
    const { content, thumbnails } = this.packet.header;
    return this.content?.header.key !== content || (this.thumbnails?.header.key ?? null) !== thumbnails;
  }

  /** Go on once the points that the view speaks of are here; until then the old ones stay, dimmed. */
  receiveContent() {
    const { header } = this.packet;
    if (this.content?.header.key !== header.content) {
      const packet = exchange.packets.get(header.content);
      this.root.dataset.waiting = String(!packet);
      if (!packet) return;
      this.content = readPacket(packet.bytes);
    }
    if (header.thumbnails !== this.thumbnails?.header.key) {
      const packet = header.thumbnails && exchange.packets.get(header.thumbnails);
      this.thumbnails = packet ? new Thumbnails(readPacket(packet.bytes)) : null;
    }
    this.root.dataset.waiting = "false";
    this.show();
  }

  /** Bring everything in line with the newest packets. */
  show() {
    const { header, columns } = this.packet;
    const { points: count, panels, bounds, key } = this.content.header;
    if (count !== header.points || panels !== header.panels.length) return; // a view of other points: theirs are on the way
    const fresh = this.shown !== key;
    this.shown = key;
    this.count = count;
    if (fresh) {
      const { coordinates } = this.content.columns; // a film places its points itself
      if (coordinates) this.coordinates = Array.from({ length: panels }, (_, p) => coordinates.subarray(2 * p * count, 2 * (p + 1) * count));
      this.order = drawingOrder(count);
      this.hits = null;
      this.gesture = null;
    }
    adoptPoints(this.kept, count, bounds);
    openFilm(this, header);
    this.takeSelection(header, columns);
    this.theme = readTheme(this.root);
    this.visible = columns.visible ? unpackBits(columns.visible, count) : new Uint8Array(count).fill(1);
    this.shownCount = this.visible.reduce((total, value) => total + value, 0);
    this.takeColour(header.colour, columns.colour);
    this.stamp += 1;
    this.hovered = -1;
    if (this.cursor >= count || !this.visible[this.cursor]) this.cursor = -1;
    this.arrange();
    buildLegend(this);
    updateActive(this);
    dressFilm(this);
    showSelection(this);
    showCard(this, null, -1);
    this.showMode();
    Object.assign(this.root.dataset, { points: String(count), content: key, theme: this.theme.dark ? "dark" : "light" });
    this.lensChanged();
    this.request("layout");
  }

  takeColour(colour, column) {
    const { kept } = this;
    const named = colour.names?.join("\n");
    if (kept.focus !== null && (colour.title !== kept.colourTitle || named !== kept.colourNames)) kept.focus = null;
    Object.assign(kept, { colourTitle: colour.title, colourNames: named });
    this.colour = colour;
    this.paint = colourPoints(colour, colour.live ? this.film.column(colour.live) : column, this.count, this.theme);
  }

  /** A selection from Python counts if it is newer than what was selected here; none of it stays behind a focus. */
  takeSelection({ selection }, columns) {
    if (!selection || selection.revision <= this.kept.revision) return;
    this.kept.revision = selection.revision;
    this.kept.focus = null;
    this.gesture = null;
    const mask = unpackBits(columns.selection, this.count);
    this.kept.selected.set(mask);
    this.kept.selectedCount = mask.reduce((total, value) => total + value, 0);
    this.root.dataset.revision = String(selection.revision);
  }

  /** Have one plot a panel, and the morph's where it is open. */
  arrange() {
    while (this.panelPlots.length < this.panels.length) this.panelPlots.push(this.wirePlot(buildPlot()));
    this.plots = this.panelPlots.slice(0, this.panels.length);
    this.plots.forEach((plot, number) => {
      plot.panel = number;
      plot.coordinates = this.coordinates[number];
      plot.medians = null;
      titlePlot(plot, this.panels[number]);
      const { title, note } = this.panels[number];
      plot.points.setAttribute("aria-label", `${title}${note ? `, ${note}` : ""}: ${this.shownCount} ${this.noun[1]} as points`);
      plot.points.dataset.panel = title;
    });
    const morphing = this.stages.length > 1 && this.kept.morphOpen;
    if (morphing) {
      this.morphPlot ??= this.wirePlot(buildMorph(this));
      this.morphPlot.points.dataset.panel = "Morph";
      dressMorph(this);
      this.plots.push(this.morphPlot);
    } else stopMorph(this);
    this.frame.morph.parentElement.hidden = this.stages.length < 2;
    this.frame.morph.setAttribute("aria-pressed", String(morphing));
    const figures = this.plots.map((plot) => plot.figure);
    const { grid } = this.frame;
    if (figures.length !== grid.children.length || figures.some((figure, at) => grid.children[at] !== figure)) grid.replaceChildren(...figures);
    if (!this.plots.includes(this.activePlot)) this.activePlot = this.plots[0];
  }

  wirePlot(plot) {
    plot.plane = { width: 1, height: 1, scale: 1, centre: [0, 0] };
    attachPointer(this, plot);
    return plot;
  }

  /** The panel whose colours, filter and shape a plot shows; the morph shows those of the nearest state. */
  panelOf(plot) {
    return plot.morph ? this.stages[Math.round(clamp(this.kept.position, 0, this.stages.length - 1))] : plot.panel;
  }

  cursorPlot() {
    return this.plots.includes(this.activePlot) ? this.activePlot : this.plots[0];
  }

  trailOpacity() {
    return clamp(0.5 - 0.05 * Math.log2(Math.max(this.shownCount, 100) / 100), 0.1, 0.45);
  }

  /** Medians of the categories in a plot, largest category first. */
  mediansOf(plot) {
    const panel = this.panelOf(plot);
    if (!plot.medians || (plot.morph && plot.mediansAt !== this.kept.position)) {
      plot.mediansAt = this.kept.position;
      const [values, names] = this.named(panel);
      const medians = categoryMedians(plot.coordinates, values, this.active[panel], names.length);
      plot.medians = medians.map((median, category) => ({ ...median, category })).filter((median) => median.at);
      plot.medians.sort((a, b) => b.size - a.size);
    }
    return plot.medians;
  }

  /** What a panel's labels name: the categories of its colour, or a film's tasks where the colour says who is right. */
  named(panel) {
    const { film, colour, paint } = this;
    return film && colour.live ? [film.tasks, film.facts.tasks.map((task) => task.title)] : [paint.values(panel), colour.names];
  }

  setMode(mode) {
    this.kept.mode = mode;
    this.showMode();
  }

  showMode() {
    const { mode } = this.kept;
    for (const [name, button] of Object.entries(this.frame.modes)) button.setAttribute("aria-pressed", String(name === mode));
    this.root.dataset.mode = mode;
    this.root.dataset.pointer = this.spaceHeld ? "pan" : mode;
  }

  toggleMorph() {
    this.kept.morphOpen = !this.kept.morphOpen;
    this.arrange();
    this.request("layout");
  }

  resetLens() {
    this.kept.lens = { zoom: 1, centre: centreOf(this.content.header.bounds) };
    this.lensChanged();
  }

  lensChanged() {
    this.root.dataset.zoom = this.kept.lens.zoom.toFixed(2);
    this.request("plane");
  }

  hasFocus() {
    return this.root.getRootNode().activeElement === this.frame.grid;
  }

  showHint() {
    const { hint } = this.frame;
    hint.hidden = false;
    clearTimeout(this.hintTimer);
    this.hintTimer = setTimeout(() => (hint.hidden = true), HINT_MS);
  }

  announce(sentence) {
    this.frame.live.textContent = sentence;
  }

  /** Ask for painting from a level on, in the next frame; `scrub`: only of the panels that a film moves. */
  request(level, scrub = false) {
    this.scrubOnly = scrub && (this.scrubOnly || !this.pending);
    this.pending = Math.max(this.pending, LEVELS[level]);
    this.frameRequest ??= requestAnimationFrame(() => this.paintNow());
  }

  paintNow() {
    if (this.frameRequest) cancelAnimationFrame(this.frameRequest);
    this.frameRequest = null;
    if (!this.shown || !this.frame.grid.clientWidth) return;
    const level = this.pending;
    const scrub = this.scrubOnly;
    this.pending = 0;
    this.scrubOnly = false;
    const started = performance.now();
    sweep(this);
    paintAll(this, level, scrub);
    if (this.film && level >= LEVELS.layout) drawCurve(this);
    if (level >= LEVELS.plane) showCard(this, this.cursorPlot(), this.cursorShown ? this.cursor : -1);
    const { gesture } = this;
    const ended = performance.now();
    if (level >= LEVELS.top) this.root.dataset.drawMs = (ended - started).toFixed(1);
    if (this.scrubbed !== undefined) {
      this.root.dataset.scrubMs = (this.scrubbed + ended - started).toFixed(1); // work of a step, without waiting for a frame
      this.scrubbed = undefined;
    }
    if (gesture?.since) {
      this.root.dataset.stepMs = (ended - gesture.since).toFixed(1);
      gesture.since = undefined;
    }
  }
}

/** Points that answer to brush and pointer, a panel: visible and of the focused category. */
function updateActive(scatter) {
  const { visible, kept, paint, count, film } = scatter;
  const masks = scatter.panels.map((_, panel) => {
    const present = film?.present[panel];
    if (kept.focus === null && !present) return visible;
    const values = paint.values(panel);
    const mask = new Uint8Array(count);
    for (let i = 0; i < count; i++) mask[i] = visible[i] && (!present || present[i]) && (kept.focus === null || values[i] === kept.focus) ? 1 : 0;
    return mask;
  });
  scatter.active = masks;
  for (const plot of scatter.plots) plot.medians = null;
}

/** What a view keeps under its key, also while it is off the page. */
function keepFor({ key, morphOpen }) {
  const known = exchange.views.get(key);
  exchange.views.delete(key);
  exchange.views.set(key, known ?? { mode: "box", focus: null, morphOpen, position: 0, revision: 0, selected: null, selectedCount: 0 });
  if (exchange.views.size > KEPT_VIEWS) exchange.views.delete(exchange.views.keys().next().value);
  return exchange.views.get(key);
}

/** Other points need another selection, another extent another lens. */
function adoptPoints(kept, count, bounds) {
  if (kept.selected?.length !== count) Object.assign(kept, { selected: new Uint8Array(count), selectedCount: 0 });
  if (kept.bounds?.join() !== bounds.join()) Object.assign(kept, { bounds, lens: { zoom: 1, centre: centreOf(bounds) } });
}

export default function ({ data, parentElement, setStateValue }) {
  const root = parentElement.querySelector(".scatter");
  const scatter = (root[INSTANCE] ??= new Scatter(root));
  scatter.connect();
  scatter.update({ data, setStateValue });
  globalThis.mergelensFeatureView = true; // what may come later waits for it
  return () => {
    // A run that was overtaken by another is cleaned up at once; only a view that left the page lets go.
    if (!root.isConnected) scatter.disconnect();
  };
}
