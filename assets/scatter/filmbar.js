// The film's slider, with the curve of accuracies that it runs along.

const CURVE_HEIGHT = 92;
const THUMB = 8; // css px from the slider's end to the middle of its thumb there
const PERCENT = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const percentOf = (value) => (value === null || value === undefined ? "–" : `${PERCENT.format(value)} %`);

function buildFilmBar(scatter) {
  const play = iconButton("play", "Play the film (Space)");
  const back = iconButton("back", "One frame back (←)");
  const forth = iconButton("forth", "One frame on (→)");
  const name = make("span", { className: "film-name" });
  const value = make("output", { className: "film-value" });
  const note = make("span", { className: "film-note" });
  const readout = make("div", { className: "film-readout" });
  const curve = make("canvas", { className: "film-curve", role: "img" });
  const slider = make("input", { type: "range", min: "0", step: "any", className: "film-slider" });
  const ticks = make("div", { className: "film-ticks", "aria-hidden": "true" });
  const bar = make(
    "div",
    { className: "film", role: "group", hidden: true },
    make("div", { className: "film-head" }, make("div", { className: "film-buttons" }, back, play, forth), make("div", { className: "film-said" }, name, value, note), readout),
    make("div", { className: "film-track" }, curve, slider, ticks),
  );
  Object.assign(bar, { play, back, forth, name, value, note, readout, curve, slider, ticks });
  slider.oninput = () => {
    stopFilm(scatter);
    moveFilm(scatter, Number(slider.value));
  };
  slider.onchange = () => glideTo(scatter, scatter.film.nearest(scatter.kept.filmAt));
  slider.onkeydown = (event) => filmKey(scatter, event);
  play.onclick = () => (scatter.rolling ? glideTo(scatter, scatter.film.nearest(scatter.kept.filmAt)) : playFilm(scatter));
  back.onclick = () => stepFilm(scatter, -1);
  forth.onclick = () => stepFilm(scatter, 1);
  curve.onpointerdown = (event) => dragCurve(scatter, event);
  return bar;
}

const FILM_KEYS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: LEAP, PageDown: -LEAP };

function filmKey(scatter, event) {
  const { film } = scatter;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in FILM_KEYS) stepFilm(scatter, FILM_KEYS[event.key]);
  else if (event.key === "Home" || event.key === "End") glideTo(scatter, film.alive.at(event.key === "Home" ? 0 : -1));
  else if (event.key === " ") scatter.filmBar.play.onclick();
  else return;
  event.preventDefault();
}

/** Drag along the curve as along the slider below it. */
function dragCurve(scatter, event) {
  const { curve } = scatter.filmBar;
  const follow = ({ clientX }) => {
    const frame = curve.getBoundingClientRect();
    moveFilm(scatter, ((clientX - frame.left - THUMB) / (frame.width - 2 * THUMB)) * scatter.film.last);
  };
  stopFilm(scatter);
  curve.setPointerCapture(event.pointerId);
  curve.onpointermove = follow;
  curve.onpointerup = curve.onpointercancel = () => {
    curve.onpointermove = curve.onpointerup = curve.onpointercancel = null;
    glideTo(scatter, scatter.film.nearest(scatter.kept.filmAt));
  };
  follow(event);
}

/** Fit the bar to a film. */
function dressFilm(scatter) {
  const { film, filmBar: bar } = scatter;
  bar.hidden = !film;
  scatter.filmFacts.hidden = !film;
  if (!film) return;
  if (bar.dressed !== film.key) {
    bar.dressed = film.key;
    const { title, texts } = film.facts;
    bar.setAttribute("aria-label", `Film over ${title}`);
    bar.name.textContent = title;
    bar.slider.max = String(film.last);
    bar.slider.setAttribute("aria-label", title);
    const wanted = [0, 0.25, 0.5, 0.75, 1].map((share) => Math.round(share * film.last));
    bar.ticks.replaceChildren(...[...new Set(wanted)].map((frame) => tickOf(texts[frame], frame / film.last)));
    bar.readings = film.panels.map(() => make("b"));
    bar.readout.replaceChildren(
      ...film.panels.map(({ title }, p) => make("span", { className: "reading" }, make("i", { className: film.panels[p].moves ? "line" : "line still" }), title, bar.readings[p])),
    );
    bar.curve.setAttribute("aria-label", sayCurve(film));
    dressFacts(scatter);
  }
  film.panels.forEach((panel, p) => bar.readout.children[p].style.setProperty("--tone", toneOf(scatter, panel)));
  dressTones(scatter);
  showFilm(scatter, true);
}

function tickOf(text, share) {
  const tick = make("span", { textContent: text });
  tick.style.left = `calc(${THUMB}px + ${share} * (100% - ${2 * THUMB}px))`;
  return tick;
}

const toneOf = ({ theme }, panel) => panel.tones[theme.dark ? 1 : 0];

/** Say where the film stands: slider, words, numbers; and what the frame holds where it is another one. */
function showFilm(scatter, turned) {
  const { film, filmBar: bar, kept, root } = scatter;
  const { texts, failed } = film.facts;
  const { before, after, share } = film.around(kept.filmAt);
  const here = Math.round(kept.filmAt);
  const refused = failed[here];
  const between = share > 0 && share < 1;
  const words = refused
    ? `${texts[here]} is refused: ${refused}`
    : between
      ? `between ${texts[before]} and ${texts[after]}: points interpolated, numbers at ${texts[film.frame]}`
      : `exact, frame ${film.alive.indexOf(film.frame) + 1} of ${film.alive.length}`;
  bar.slider.value = String(kept.filmAt);
  bar.slider.style.setProperty("--share", `${(100 * kept.filmAt) / film.last}%`);
  bar.slider.setAttribute("aria-valuetext", between ? words : `${texts[film.frame]}, ${words}`);
  bar.value.textContent = texts[film.frame];
  bar.note.textContent = words;
  bar.note.title = refused ?? "";
  bar.dataset.between = String(between);
  Object.assign(root.dataset, { film: kept.filmAt.toFixed(3), frame: String(film.frame) });
  if (turned) {
    film.panels.forEach((panel, p) => {
      bar.readings[p].textContent = percentOf(panel.curve[panel.moves ? film.frame : 0]);
      if (scatter.plots[p]) titlePlot(scatter.plots[p], { ...scatter.panels[p], note: noteOf(scatter, p) });
    });
    showFacts(scatter);
  }
  drawCurve(scatter);
}

/** The numbers beside a panel's title: the frame's in-domain accuracy, and how far to trust its map. */
function noteOf(scatter, p) {
  const panel = scatter.film.panels[p];
  const frame = panel.moves ? scatter.film.frame : 0;
  const trust = panel.trust[frame];
  return `${percentOf(panel.curve[frame])} in-domain${typeof trust === "number" ? ` · trust ${trust.toFixed(2)}` : ""}`;
}

function sayFilm({ film }) {
  const { title, texts } = film.facts;
  const values = film.panels.map((panel) => `${panel.title} ${percentOf(panel.curve[panel.moves ? film.frame : 0])}`);
  return `${title} ${texts[film.frame]}: ${values.join(", ")}`;
}

/** The curve in words: each state's accuracy at both ends and at its highest frame. */
function sayCurve({ facts: { title, texts }, panels, alive }) {
  const said = panels.map(({ title: state, moves, curve }) => {
    if (!moves) return `${state} ${percentOf(curve[0])} throughout`;
    const known = alive.filter((frame) => curve[frame] !== null);
    if (!known.length) return `${state} –`;
    const top = known.reduce((best, frame) => (curve[frame] > curve[best] ? frame : best));
    const [first, final] = [alive[0], alive.at(-1)].map((frame) => `${percentOf(curve[frame])} at ${texts[frame]}`);
    return `${state} ${first}, ${final}, highest ${percentOf(curve[top])} at ${texts[top]}`;
  });
  return `In-domain accuracy over ${title}: ${said.join("; ")}`;
}

function showPlaying({ filmBar, rolling }) {
  if (!filmBar || filmBar.playing === rolling) return;
  filmBar.playing = rolling;
  setIcon(filmBar.play, rolling ? "pause" : "play");
  filmBar.play.title = rolling ? "Stop the film (Space)" : "Play the film (Space)";
}

/** In-domain accuracies over the parameter: a line for a state that moves, a dashed level for one that stands still. */
function drawCurve(scatter) {
  const { film, filmBar, theme, kept } = scatter;
  const { curve } = filmBar;
  const width = curve.clientWidth;
  if (!width) return;
  const ratio = Math.min(globalThis.devicePixelRatio || 1, 3);
  if (curve.width !== Math.round(width * ratio)) [curve.width, curve.height] = [Math.round(width * ratio), Math.round(CURVE_HEIGHT * ratio)];
  const context = curve.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, CURVE_HEIGHT);
  const values = film.panels.flatMap((panel) => panel.curve).filter((value) => value !== null);
  const low = Math.max(0, Math.floor(Math.min(...values) / 10) * 10);
  const high = Math.min(100, Math.ceil(Math.max(...values) / 10) * 10 || 100);
  const x = (frame) => THUMB + (frame / film.last) * (width - 2 * THUMB);
  const y = (value) => 8 + (1 - (value - low) / Math.max(high - low, 1)) * (CURVE_HEIGHT - 16);
  if (values.length) drawLevels(context, theme, [low, high], width, y);
  for (const frame of Object.keys(film.facts.failed)) drawRefused(context, theme, x(Number(frame)));
  const at = x(kept.filmAt);
  context.fillStyle = css(theme.text, 0.28);
  context.fillRect(Math.round(at) - 0.5, 2, 1, CURVE_HEIGHT - 2);
  film.panels.forEach((panel) => drawLine(context, panel, toneOf(scatter, panel), film, x, y, theme));
}

function drawLevels(context, theme, levels, width, y) {
  context.font = `11px ${theme.font}`;
  context.textBaseline = "middle";
  for (const level of levels) {
    const line = Math.round(y(level)) + 0.5;
    context.fillStyle = css(theme.text, 0.1);
    context.fillRect(0, line - 0.5, width, 1);
    context.fillStyle = css(theme.text, 0.6);
    context.textAlign = "left";
    context.fillText(`${level} %`, 0, level === levels[0] ? line - 8 : line + 9);
  }
}

function drawRefused(context, theme, x) {
  context.strokeStyle = css(theme.text, 0.45);
  context.lineWidth = 1.25;
  context.beginPath();
  for (const sign of [-1, 1]) {
    context.moveTo(x - 3.5, CURVE_HEIGHT - 10 - 3.5 * sign);
    context.lineTo(x + 3.5, CURVE_HEIGHT - 10 + 3.5 * sign);
  }
  context.stroke();
}

function drawLine(context, panel, tone, film, x, y, theme) {
  context.strokeStyle = context.fillStyle = tone;
  context.lineWidth = 2;
  context.lineJoin = "round";
  context.beginPath();
  if (!panel.moves) {
    if (panel.curve[0] === null) return;
    context.setLineDash([5, 4]);
    context.lineWidth = 1.25;
    context.moveTo(x(0), y(panel.curve[0]));
    context.lineTo(x(film.last), y(panel.curve[0]));
    context.stroke();
    context.setLineDash([]);
    return;
  }
  const known = film.alive.filter((frame) => panel.curve[frame] !== null);
  known.forEach((frame, number) => context[number ? "lineTo" : "moveTo"](x(frame), y(panel.curve[frame])));
  context.stroke();
  for (const frame of known) {
    const here = frame === film.frame;
    context.beginPath();
    context.arc(x(frame), y(panel.curve[frame]), here ? 5 : 2.2, 0, 2 * Math.PI);
    context.fill();
    if (!here) continue;
    context.lineWidth = 2;
    context.strokeStyle = css(theme.background);
    context.stroke();
  }
}
