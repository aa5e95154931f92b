// The same without a pointer: arrows walk from point to point, Enter selects.

const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
const PAN_STEP = 40; // css px
const ZOOM_STEP = 1.35;

function keyPressed(scatter, event) {
  if (!scatter.content || event.target !== scatter.frame.grid || event.ctrlKey || event.metaKey) return;
  const command = ARROWS[event.key] ? arrow : KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  const isPanel = /^[1-9]$/.test(event.key) && Number(event.key) <= scatter.plots.length;
  if (!command && !isPanel) return;
  scatter.root.dataset.keys = "true"; // shows where the focus is, which a pointer knows
  event.preventDefault();
  event.stopPropagation();
  if (isPanel) choosePanel(scatter, Number(event.key) - 1);
  else command(scatter, event);
}

const KEYS = {
  Enter: (scatter, event) => scatter.cursor >= 0 && scatter.visible[scatter.cursor] && selectOne(scatter, scatter.cursor, operationOf(event)),
  Escape: (scatter) => (scatter.gesture ? cancelGesture(scatter) : clearSelection(scatter)),
  "+": (scatter) => zoom(scatter, ZOOM_STEP),
  "=": (scatter) => zoom(scatter, ZOOM_STEP),
  "-": (scatter) => zoom(scatter, 1 / ZOOM_STEP),
  _: (scatter) => zoom(scatter, 1 / ZOOM_STEP),
  0: (scatter) => scatter.resetLens(),
  b: (scatter) => scatter.setMode("box"),
  l: (scatter) => scatter.setMode("lasso"),
  p: (scatter) => scatter.setMode("pan"),
  m: (scatter) => scatter.stages.length && scatter.toggleMorph(),
  " ": (scatter) => {
    scatter.spaceHeld = true;
    scatter.showMode();
  },
};

function keyReleased(scatter, event) {
  if (event.key !== " ") return;
  scatter.spaceHeld = false;
  scatter.showMode();
}

function arrow(scatter, event) {
  const [ux, uy] = ARROWS[event.key];
  if (event.shiftKey) {
    pan(scatter, -ux * PAN_STEP, -uy * PAN_STEP);
    return;
  }
  const plot = scatter.cursorPlot();
  const active = scatter.active[scatter.panelOf(plot)];
  const { width, height } = plot.plane;
  const known = scatter.cursor >= 0 && active[scatter.cursor];
  moveCursor(
    scatter,
    plot,
    known ? nextPoint(plot.positions, active, scatter.cursor, [ux, uy]) : nearestPoint(plot.positions, active, width / 2, height / 2, Infinity),
  );
}

function moveCursor(scatter, plot, index) {
  scatter.cursor = index;
  scatter.cursorShown = index >= 0;
  scatter.root.dataset.cursor = String(index);
  if (index < 0) return;
  keepInSight(scatter, plot, index);
  showCard(scatter, plot, index);
  scatter.announce(sayPoint(scatter, index));
  scatter.request("overlay");
}

/** Move the plane when the cursor has left it. */
function keepInSight(scatter, plot, index) {
  const [x, y] = [plot.positions[2 * index], plot.positions[2 * index + 1]];
  const { width, height } = plot.plane;
  const dx = x < 12 ? 30 - x : x > width - 12 ? width - 30 - x : 0;
  const dy = y < 12 ? 30 - y : y > height - 12 ? height - 30 - y : 0;
  if (!dx && !dy) return;
  pan(scatter, dx, dy);
  scatter.paintNow();
}

function choosePanel(scatter, number) {
  const plot = scatter.plots[number];
  scatter.activePlot = plot;
  scatter.announce(plot.title.textContent);
  if (scatter.cursor >= 0) moveCursor(scatter, plot, scatter.cursor);
}
