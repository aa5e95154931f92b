// What a film's frame says below the panels: a bar a task and state, and the images that merging lost and repair brought back.

const LISTED = 16; // images shown of a list
const LISTED_TEXTS = 5; // sentences take a line each
const SMALL_SIDE = 38;
const MEASURES = { accuracy: "Accuracy", l1: "Distance to the expert" };
const ASIDES = { out: "Out of domain", shifted: "Shifted" }; // above the first task of a domain

function buildFilmFacts(scatter) {
  const measures = Object.entries(MEASURES).map(([measure, text]) => {
    const button = make("button", { type: "button", textContent: text, "aria-pressed": String(measure === "accuracy") });
    button.dataset.measure = measure;
    button.onclick = () => {
      scatter.kept.measure = measure;
      showFacts(scatter);
    };
    return button;
  });
  const unit = make("span", { className: "film-unit" });
  const rows = make("div", { className: "film-tasks" });
  const lists = make("div", { className: "film-lists" });
  const facts = make(
    "div",
    { className: "film-facts", hidden: true },
    make("section", { "aria-label": "Task by task" }, make("div", { className: "film-facts-head" }, make("div", { className: "group", role: "group", "aria-label": "Measure" }, ...measures), unit), rows),
    make("section", { "aria-label": "Images" }, lists),
  );
  return Object.assign(facts, { measures, unit, rows, lists });
}

/** Have a row a task and a list a kind of change. */
function dressFacts(scatter) {
  const { film, filmFacts: facts } = scatter;
  const within = film.facts.tasks.map((task, number) => ({ ...task, number }));
  const ordered = ["in", "out", "shifted"].flatMap((domain) => within.filter((task) => task.domain === domain));
  facts.entries = ordered.map((task) => taskRow(scatter, task));
  const headed = new Map(Object.keys(ASIDES).map((domain) => [facts.entries.find(({ task }) => task.domain === domain), ASIDES[domain]]));
  facts.rows.replaceChildren(
    ...facts.entries.flatMap((entry) => (headed.has(entry) ? [make("div", { className: "film-aside", textContent: headed.get(entry) }), entry.row] : [entry.row])),
  );
  facts.changes = changesOf(film).map((change) => changeList(scatter, change));
  facts.lists.replaceChildren(...facts.changes.map(({ part }) => part));
}

function taskRow(scatter, task) {
  const { film } = scatter;
  const moving = film.panels.map((panel, p) => ({ panel, p })).filter(({ panel }) => panel.moves);
  const bars = moving.map(({ p }) => Object.assign(make("i", { className: "film-bar" }), { panel: p }));
  const mark = make("i", { className: "film-mark" });
  const numbers = moving.map(({ p }) => Object.assign(make("span", { className: "film-number" }), { panel: p }));
  const row = make(
    "button",
    { type: "button", className: "film-task" },
    make("span", { className: "film-task-name", textContent: task.title }),
    make("span", { className: "film-bars" }, ...bars, mark),
    make("span", { className: "film-numbers" }, ...numbers),
  );
  row.onclick = () => selectWhere(scatter, (i) => film.tasks[i] === task.number);
  return { task, row, bars, mark, numbers };
}

/** The changes that are told apart: among panels merged, corrected and expert, those that are there. */
function changesOf(film) {
  const place = (kind) => film.panels.findIndex((panel) => panel.kind === kind);
  const [merged, corrected, expert] = ["merged", "corrected", "expert"].map(place);
  const changes = [];
  const name = film.panels[corrected]?.title;
  if (merged >= 0 && expert >= 0) changes.push({ title: "Lost by merging", hint: "The expert is right, the merged model is wrong.", gone: merged, was: expert });
  if (merged >= 0 && corrected >= 0) {
    changes.push({ title: `Repaired by ${name}`, hint: "The merged model is wrong, and right once its features are corrected.", gone: merged, was: corrected });
    changes.push({ title: `Broken by ${name}`, hint: "The merged model is right, and wrong once its features are corrected.", gone: corrected, was: merged });
  }
  return changes;
}

function changeList(scatter, change) {
  const count = make("b");
  const head = make("button", { type: "button", className: "film-list-head", title: change.hint }, make("span", { textContent: change.title }), count);
  const rest = make("span", { className: "film-rest" });
  const images = make("div", { className: "film-images" });
  const entry = { change, count, head, images, rest, cells: [], rows: [] };
  head.onclick = () => selectWhere(scatter, (i) => entry.rows.includes(i));
  entry.part = make("div", { className: "film-list" }, head, images);
  return entry;
}

function selectWhere(scatter, test) {
  setSelection(scatter, Uint8Array.from({ length: scatter.count }, (_, i) => (scatter.visible[i] && test(i) ? 1 : 0)));
  scatter.request("top");
  commitSelection(scatter);
}

function dressTones(scatter) {
  const { film, filmFacts: facts } = scatter;
  for (const { bars, numbers } of facts.entries) {
    for (const part of [...bars, ...numbers]) part.style.setProperty("--tone", toneOf(scatter, film.panels[part.panel]));
  }
}

/** Show what the exact frame says. */
function showFacts(scatter) {
  const { film, filmFacts: facts, kept } = scatter;
  const measure = (kept.measure ??= "accuracy");
  for (const button of facts.measures) button.setAttribute("aria-pressed", String(button.dataset.measure === measure));
  const accuracy = measure === "accuracy";
  const counts = film.facts.tasks.map((task) => task.evaluated);
  const images = Math.min(...counts) === Math.max(...counts) ? counts[0] : `${Math.min(...counts)}–${Math.max(...counts)}`;
  facts.unit.textContent = `${accuracy ? "percent" : "L1, feature units"}, ${images} ${scatter.noun[1]} a task`;
  const most = accuracy ? 100 : Math.max(...film.panels.flatMap((panel) => panel.l1.flat()).filter((value) => value !== null), 1e-9);
  const write = (value) => (value === null ? "–" : accuracy ? PERCENT.format(value) : value.toFixed(3));
  for (const { task, row, bars, mark, numbers } of facts.entries) {
    const valueOf = (p) => film.panels[p][measure][task.number][film.panels[p].moves ? film.frame : 0];
    for (const bar of bars) bar.style.transform = `scaleX(${(valueOf(bar.panel) ?? 0) / most})`;
    for (const number of numbers) number.textContent = write(valueOf(number.panel));
    const level = film.panels.findIndex((panel) => panel.kind === "expert");
    const expert = level < 0 ? null : valueOf(level);
    mark.hidden = !accuracy || expert === null;
    mark.style.left = `${expert ?? 0}%`;
    const said = film.panels.map((panel, p) => `${panel.title} ${write(valueOf(p))}`).join(", ");
    row.title = `${said}. Click to select the task's images`;
    row.setAttribute("aria-label", `${task.title}: ${said}. Select its images`);
  }
  facts.stale = true;
  facts.waiting ??= requestAnimationFrame(() => {
    facts.waiting = null;
    showChanges(scatter);
  });
}

/** Fill the lists of images, a frame after the numbers. */
function showChanges(scatter) {
  const { film, filmFacts: facts, thumbnails } = scatter;
  if (!film || !facts.changes) return;
  for (const entry of facts.changes) {
    const { gone, was } = entry.change;
    entry.rows = [];
    let of = 0;
    for (let i = 0; i < film.count; i++) {
      if (!film.known(gone, i) || !film.known(was, i)) continue;
      of++;
      if (film.right(was, i) && !film.right(gone, i)) entry.rows.push(i);
    }
    entry.count.textContent = `${entry.rows.length} of ${of}`;
    entry.head.disabled = !entry.rows.length;
    entry.images.hidden = !thumbnails;
    if (thumbnails) showImages(scatter, entry);
  }
}

function showImages(scatter, entry) {
  const { film, thumbnails } = scatter;
  const { vocabulary } = scatter.content.header;
  const shown = spread(entry.rows, thumbnails.header.texts ? LISTED_TEXTS : LISTED);
  while (entry.cells.length < shown.length) entry.cells.push(imageCell(scatter));
  if (entry.images.children.length !== shown.length + 1) entry.images.replaceChildren(...entry.cells.slice(0, shown.length), entry.rest);
  shown.forEach((i, place) => {
    const cell = entry.cells[place];
    const said = film.predictions[entry.change.gone * film.count + i];
    const title = `${vocabulary[film.truth[i]]}, taken for ${vocabulary[said]}`;
    if (cell.title !== title) cell.title = title;
    if (cell.dataset.index === String(i)) return;
    cell.dataset.index = cell.canvas.dataset.index = String(i);
    const sentence = thumbnails.header.texts?.[i];
    cell.classList.toggle("film-text", sentence !== undefined);
    cell.replaceChildren(sentence ?? cell.canvas);
    cell.setAttribute("aria-label", sentence ?? `Image ${i}`);
    if (sentence === undefined) thumbnails.draw(i, cell.canvas).catch(() => {});
  });
  const more = entry.rows.length - shown.length;
  entry.rest.textContent = more > 0 ? `+ ${more}` : "";
}

function imageCell(scatter) {
  const canvas = make("canvas", { className: "thumbnail", width: 1, height: 1 });
  canvas.style.width = canvas.style.height = `${SMALL_SIDE}px`;
  const cell = make("button", { type: "button", className: "film-image" }, canvas);
  cell.canvas = canvas;
  cell.onclick = (event) => selectOne(scatter, Number(cell.dataset.index), operationOf(event));
  return cell;
}

/** At most so many of some rows, evenly over all of them, so that each task has its share. */
function spread(rows, most) {
  if (rows.length <= most) return rows;
  return Array.from({ length: most }, (_, place) => rows[Math.floor((place * rows.length) / most)]);
}
