// Pointer, wheel and pinch. A gesture keeps what was selected when it began, so Escape can take it back.

const CLICK_SLACK = 4; // css px a click may move
const CLICK_REACH = 14;
const HOVER_REACH = 12;
const LASSO_STEP = 3;
const WHEEL_SPEED = 0.0016;

function attachPointer(scatter, plot) {
  const { overlay } = plot;
  overlay.onpointerdown = (event) => pressed(scatter, plot, event);
  overlay.onpointermove = (event) => moved(scatter, plot, event);
  overlay.onpointerup = (event) => released(scatter, plot, event);
  overlay.onpointercancel = (event) => {
    scatter.pointers.delete(event.pointerId);
    cancelGesture(scatter);
  };
  overlay.onpointerleave = () => hover(scatter, plot, -1);
  overlay.ondblclick = () => clearSelection(scatter);
  overlay.onauxclick = (event) => event.preventDefault();
  overlay.addEventListener("wheel", (event) => wheeled(scatter, plot, event), { passive: false });
}

const place = (plot, event) => {
  const frame = plot.overlay.getBoundingClientRect();
  return [event.clientX - frame.left, event.clientY - frame.top];
};

function pressed(scatter, plot, event) {
  if (!scatter.content || event.button > 1) return;
  const at = place(plot, event);
  scatter.pointers.set(event.pointerId, { plot, at });
  plot.overlay.setPointerCapture(event.pointerId);
  scatter.frame.grid.focus({ preventScroll: true });
  scatter.root.dataset.keys = "false";
  scatter.activePlot = plot;
  scatter.cursorShown = false;
  hover(scatter, plot, -1);
  if (scatter.pointers.size === 2) {
    cancelGesture(scatter);
    scatter.gesture = { kind: "pinch", plot, spread: spreadOf(scatter), middle: middleOf(scatter) };
    return;
  }
  const panning = scatter.kept.mode === "pan" || scatter.spaceHeld || event.button === 1;
  scatter.gesture = {
    kind: panning ? "pan" : scatter.kept.mode,
    plot,
    from: at,
    last: at,
    path: [...at],
    before: scatter.kept.selected.slice(),
    operation: operationOf(event),
    dragged: false,
  };
}

function moved(scatter, plot, event) {
  const at = place(plot, event);
  const pointer = scatter.pointers.get(event.pointerId);
  if (pointer) pointer.at = at;
  const { gesture } = scatter;
  if (!gesture) {
    if (scatter.content && !pointer) hover(scatter, plot, nearestHere(scatter, plot, at, HOVER_REACH));
    return;
  }
  if (gesture.kind === "pinch") {
    pinched(scatter, gesture);
    return;
  }
  if (gesture.plot !== plot) return;
  if (!gesture.dragged && Math.hypot(at[0] - gesture.from[0], at[1] - gesture.from[1]) < CLICK_SLACK) return;
  gesture.dragged = true;
  gesture.since ??= event.timeStamp; // of the oldest move not yet painted
  if (gesture.kind === "pan") {
    pan(scatter, at[0] - gesture.last[0], at[1] - gesture.last[1]);
    gesture.last = at;
    return;
  }
  extendBrush(gesture, at);
  gesture.stale = true;
  scatter.request("top");
}

function extendBrush(gesture, at) {
  if (gesture.kind === "box") {
    gesture.outline = [...gesture.from, ...at];
    return;
  }
  const [x, y] = gesture.path.slice(-2);
  if (Math.hypot(at[0] - x, at[1] - y) >= LASSO_STEP) gesture.path.push(...at);
  gesture.outline = gesture.path;
}

/** Take the brush into the selection; called once a frame, before painting. */
function sweep(scatter) {
  const { gesture } = scatter;
  if (!gesture?.stale) return;
  gesture.stale = false;
  const active = scatter.active[scatter.panelOf(gesture.plot)];
  scatter.hits ??= new Uint8Array(scatter.count);
  const find = gesture.kind === "box" ? hitsInBox : hitsInLasso;
  find(gesture.plot.positions, active, gesture.outline, scatter.hits);
  applyHits(scatter, scatter.hits, gesture.before, gesture.operation);
}

function released(scatter, plot, event) {
  scatter.pointers.delete(event.pointerId);
  const { gesture } = scatter;
  if (!gesture || (gesture.plot !== plot && gesture.kind !== "pinch")) return;
  if (gesture.kind === "pinch") {
    if (!scatter.pointers.size) scatter.gesture = null;
    return;
  }
  if (gesture.dragged && gesture.outline) {
    sweep(scatter);
    scatter.gesture = null;
    commitSelection(scatter);
  } else {
    scatter.gesture = null;
    const index = gesture.dragged ? -1 : nearestHere(scatter, plot, gesture.from, CLICK_REACH);
    if (index >= 0) {
      scatter.cursor = index;
      selectOne(scatter, index, gesture.operation);
    }
  }
  scatter.request("top");
}

/** Drop a gesture and what it has selected so far. */
function cancelGesture(scatter) {
  const { gesture } = scatter;
  scatter.gesture = null;
  if (!gesture?.before) return;
  setSelection(scatter, gesture.before);
  scatter.request("top");
}

const nearestHere = (scatter, plot, [x, y], reach) =>
  nearestPoint(plot.positions, scatter.active[scatter.panelOf(plot)], x, y, reach);

function hover(scatter, plot, index) {
  if (scatter.hovered === index) return;
  scatter.hovered = index;
  scatter.root.dataset.hover = String(index);
  if (scatter.content) showCard(scatter, plot, index);
  scatter.request("overlay");
}

function pan(scatter, dx, dy) {
  const { lens } = scatter.kept;
  const { scale } = scatter.plots[0].plane;
  lens.centre = [lens.centre[0] - dx / scale, lens.centre[1] + dy / scale];
  scatter.request("plane");
}

function zoom(scatter, factor, plot = scatter.plots[0], at = [plot.plane.width / 2, plot.plane.height / 2]) {
  zoomAround(scatter.kept.lens, factor, at[0], at[1], plot.plane);
  plot.plane = { ...plot.plane, scale: scaleOf(scatter.content.header.bounds, scatter.kept.lens.zoom, plot.plane.width, plot.plane.height) };
  scatter.lensChanged();
}

/** The wheel zooms once the view has been clicked, or with Ctrl; before that the page scrolls. */
function wheeled(scatter, plot, event) {
  if (!scatter.content) return;
  if (!scatter.hasFocus() && !event.ctrlKey && !event.metaKey) {
    scatter.showHint();
    return;
  }
  event.preventDefault();
  hover(scatter, plot, -1);
  const pixels = event.deltaMode === 1 ? event.deltaY * 16 : event.deltaY;
  zoom(scatter, Math.exp(-clamp(pixels, -240, 240) * WHEEL_SPEED * (event.ctrlKey ? 3 : 1)), plot, place(plot, event));
}

const fingers = (scatter) => [...scatter.pointers.values()].slice(0, 2).map((pointer) => pointer.at);
function spreadOf(scatter) {
  const [one, other] = fingers(scatter);
  return Math.hypot(one[0] - other[0], one[1] - other[1]);
}
function middleOf(scatter) {
  const [one, other] = fingers(scatter);
  return [(one[0] + other[0]) / 2, (one[1] + other[1]) / 2];
}

function pinched(scatter, gesture) {
  if (scatter.pointers.size < 2) return;
  const [spread, middle] = [spreadOf(scatter), middleOf(scatter)];
  pan(scatter, middle[0] - gesture.middle[0], middle[1] - gesture.middle[1]);
  if (spread > 8 && gesture.spread > 8) zoom(scatter, spread / gesture.spread, gesture.plot, middle);
  Object.assign(gesture, { spread, middle });
}
