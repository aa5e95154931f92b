// The legend: categories as buttons that focus one and grey the rest, or a colour bar.

/** Build the legend anew where names or colours changed, and only then: a rerun must not take the focus from a button. */
function buildLegend(scatter) {
  const { colour } = scatter;
  const { legend } = scatter.frame;
  const signature = JSON.stringify([colour, scatter.theme]);
  if (scatter.legendSignature === signature) return;
  scatter.legendSignature = signature;
  const heading = make("span", { className: "legend-title", textContent: colour.title });
  scatter.legendEntries = [];
  if (colour.kind === "continuous") {
    legend.replaceChildren(heading, colourBar(scatter));
    return;
  }
  const entries = colour.names.map((name, category) => {
    const swatch = make("span", { className: "swatch" });
    swatch.style.background = css(scatter.paint.categories[category]);
    const count = make("span", { className: "count" });
    const button = make(
      "button",
      { type: "button", className: "category", title: "Focus this category", "aria-pressed": "false" },
      swatch,
      make("span", { className: "name", textContent: name }),
      count,
    );
    button.onclick = () => focusCategory(scatter, category);
    scatter.legendEntries.push({ button, count });
    return button;
  });
  legend.replaceChildren(heading, make("div", { className: "categories", role: "group", "aria-label": colour.title }, ...entries));
}

function colourBar({ colour, theme }) {
  const bar = make("canvas", { className: "bar", width: 160, height: 1, role: "img" });
  bar.setAttribute("aria-label", `${colour.title} from ${describeValue(colour, colour.low)} to ${describeValue(colour, colour.high)}`);
  const context = bar.getContext("2d");
  const stops = colour.stops.map((hex) => parseColour(hex) ?? theme.grey);
  for (let x = 0; x < bar.width; x++) {
    context.fillStyle = css(ramp(stops, x / (bar.width - 1)));
    context.fillRect(x, 0, 1, 1);
  }
  const end = (value) => make("span", { className: "end", textContent: describeValue(colour, value) });
  return make("div", { className: "scale" }, end(colour.low), bar, end(colour.high));
}

function focusCategory(scatter, category) {
  scatter.kept.focus = scatter.kept.focus === category ? null : category;
  scatter.hovered = -1;
  updateActive(scatter);
  refreshLegend(scatter);
  scatter.announce(scatter.kept.focus === null ? "All categories" : `Only ${scatter.colour.names[category]}`);
  scatter.request("base");
}

/** Show focus and counts: visible points, and how many of them are selected. */
function refreshLegend(scatter) {
  const { legendEntries: entries, kept, visible } = scatter;
  if (!entries.length) return;
  const totals = new Uint32Array(entries.length);
  const chosen = new Uint32Array(entries.length);
  const values = scatter.paint.shared ? scatter.paint.values(0) : null;
  for (let i = 0; values && i < scatter.count; i++) {
    if (!visible[i] || values[i] === MISSING) continue;
    totals[values[i]]++;
    if (kept.selected[i]) chosen[values[i]]++;
  }
  entries.forEach(({ button, count }, category) => {
    const focused = kept.focus === category;
    button.setAttribute("aria-pressed", String(focused));
    button.classList.toggle("dimmed", kept.focus !== null && !focused);
    const total = totals[category].toLocaleString("en");
    const text = kept.selectedCount ? `${chosen[category].toLocaleString("en")} / ${total}` : total;
    if (values && count.textContent !== text) count.textContent = text;
  });
}
