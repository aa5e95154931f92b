// The morph: one more plot in which the points travel from state to state, drawn with their trails.

const TRAVEL_MS = 1400; // from one state to the next

function buildMorph(scatter) {
  const plot = buildPlot();
  plot.morph = true;
  plot.figure.classList.add("morph");
  const play = iconButton("play", "Play the movement");
  const slider = make("input", { type: "range", min: "0", step: "0.01", "aria-label": "Position between the states" });
  const ticks = make("div", { className: "ticks" });
  plot.figure.append(make("div", { className: "mover" }, play, make("div", { className: "track" }, slider, ticks)));
  Object.assign(plot, { play, slider, ticks });
  slider.oninput = () => {
    stopMorph(scatter);
    setMorph(scatter, Number(slider.value));
  };
  play.onclick = () => (scatter.playing ? stopMorph(scatter) : playMorph(scatter));
  return plot;
}

/** Fit slider and tick labels to the states of this run. */
function dressMorph(scatter) {
  const { morphPlot: plot, stages, panels } = scatter;
  plot.slider.max = String(stages.length - 1);
  const names = stages.map((panel) => panels[panel].title);
  if (plot.names?.join("\n") !== names.join("\n")) {
    plot.names = names;
    plot.ticks.replaceChildren(
      ...names.map((name, stage) => {
        const tick = make("button", { type: "button", textContent: name, title: `Go to ${name}`, "aria-label": `Go to ${name}` });
        tick.onclick = () => {
          stopMorph(scatter);
          setMorph(scatter, stage);
        };
        return tick;
      }),
    );
  }
  showMorph(scatter);
}

function setMorph(scatter, position) {
  scatter.kept.position = clamp(position, 0, scatter.stages.length - 1);
  showMorph(scatter);
  scatter.hovered = -1;
  showCard(scatter, null, -1);
  scatter.request("plane");
}

function showMorph(scatter) {
  const { morphPlot: plot, kept, panels, stages } = scatter;
  const position = clamp(kept.position, 0, stages.length - 1);
  const at = Math.min(Math.floor(position), stages.length - 2);
  const share = position - at;
  const [from, to] = [plot.names[at], plot.names[at + 1]];
  const words = share === 0 ? from : share === 1 ? to : `${Math.round(100 * share)} % from ${from} to ${to}`;
  plot.slider.value = String(position);
  plot.slider.style.setProperty("--share", `${(100 * position) / (stages.length - 1)}%`);
  plot.slider.setAttribute("aria-valuetext", words);
  titlePlot(plot, { title: "Morph", shape: panels[scatter.panelOf(plot)].shape, note: words });
  plot.points.setAttribute("aria-label", `Morph: ${words}`);
  scatter.root.dataset.morph = position.toFixed(2);
}

/** Interpolate the coordinates at the slider's position. */
function moveMorph(scatter, plot) {
  const { kept, stages, coordinates, count } = scatter;
  const position = clamp(kept.position, 0, stages.length - 1);
  const at = Math.min(Math.floor(position), stages.length - 2);
  const share = position - at;
  const from = coordinates[stages[at]];
  const to = coordinates[stages[at + 1]];
  if (plot.coordinates?.length !== 2 * count) plot.coordinates = new Float32Array(2 * count);
  for (let i = 0; i < 2 * count; i++) plot.coordinates[i] = from[i] + (to[i] - from[i]) * share;
}

/** Where the trails bend: the states passed so far, in css px. */
function placeTrails(scatter, plot) {
  const passed = Math.max(1, Math.ceil(scatter.kept.position));
  plot.trails = scatter.stages.slice(0, passed).map((panel, stage) => {
    const line = plot.trails?.[stage]?.length === plot.positions.length ? plot.trails[stage] : new Float32Array(plot.positions.length);
    project(scatter.coordinates[panel], line, plot.plane);
    return line;
  });
}

function playMorph(scatter) {
  const last = scatter.stages.length - 1;
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
    setMorph(scatter, scatter.kept.position >= last ? 0 : Math.floor(scatter.kept.position) + 1);
    return;
  }
  const start = scatter.kept.position >= last ? 0 : scatter.kept.position;
  let began = null;
  const step = (now) => {
    if (!scatter.playing) return;
    began ??= now;
    const position = Math.min(start + (now - began) / TRAVEL_MS, last);
    const at = Math.min(Math.floor(position), last - 1);
    const share = position - at;
    setMorph(scatter, at + share * share * (3 - 2 * share)); // rest at each state
    if (position >= last) stopMorph(scatter);
    else scatter.playing = requestAnimationFrame(step);
  };
  scatter.playing = requestAnimationFrame(step);
  setIcon(scatter.morphPlot.play, "pause");
}

function stopMorph(scatter) {
  if (scatter.playing) cancelAnimationFrame(scatter.playing);
  scatter.playing = null;
  if (scatter.morphPlot) setIcon(scatter.morphPlot.play, "play");
}
