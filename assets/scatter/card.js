// The hover card: thumbnail or text, true class, what each panel predicts, and the colour variable.

const SHEETS_KEPT = 6;
const THUMBNAIL_SIDE = 84;

/** Thumbnails of a packet; sheets are decoded when first needed and the last few kept. */
class Thumbnails {
  constructor({ header, columns }) {
    this.header = header;
    this.columns = columns;
    this.decoded = new Map(); // sheet → promise of an ImageBitmap
  }

  sheet(number) {
    const known = this.decoded.get(number);
    this.decoded.delete(number);
    const blob = () => new Blob([this.columns[`sheet${number}`]], { type: "image/jpeg" });
    this.decoded.set(number, known ?? createImageBitmap(blob()));
    if (this.decoded.size > SHEETS_KEPT) {
      const [oldest, bitmap] = this.decoded.entries().next().value;
      this.decoded.delete(oldest);
      bitmap.then((image) => image.close(), () => {});
    }
    return this.decoded.get(number);
  }

  async draw(index, canvas) {
    const { size, cell, perSheet, images } = this.header;
    const sheet = await this.sheet(Math.floor(index / perSheet));
    if (canvas.dataset.index !== String(index)) return; // the pointer has moved on
    const onSheet = Math.min(perSheet, images - Math.floor(index / perSheet) * perSheet);
    const columns = Math.ceil(Math.sqrt(onSheet));
    const place = index % perSheet;
    const [x, y] = [(place % columns) * cell[0], Math.floor(place / columns) * cell[1]];
    [canvas.width, canvas.height] = size;
    canvas.getContext("2d").drawImage(sheet, x, y, size[0], size[1], 0, 0, size[0], size[1]);
  }
}

function describePoint(scatter, index) {
  const { content, panels, colour, paint, count } = scatter;
  const { vocabulary, noun } = { ...content.header, noun: scatter.noun };
  const word = (column, at) => (!column || column[at] === MISSING ? null : vocabulary[column[at]]);
  const { truth, predictions, groups, index: places } = content.columns;
  const rows = [];
  const trueClass = word(truth, index);
  if (trueClass !== null) rows.push({ name: "True class", value: trueClass });
  panels.forEach((panel, number) => {
    const predicted = word(predictions, number * count + index);
    if (predicted === null) return;
    const right = truth[index] === MISSING || content.header.graded?.includes(groups?.[index]) ? null : predictions[number * count + index] === truth[index];
    rows.push({ name: panel.title, shape: panel.shape, value: predicted, right });
  });
  const values = paint.shared ? [paint.valueAt(0, index)] : panels.map((_, number) => paint.valueAt(number, index));
  const text = values.map((value) => describeValue(colour, value)).join(" · ");
  const known = rows.some((row) => row.value === text) || text === word(groups, index);
  if (!known) rows.push({ name: colour.title, value: text });
  const sentence = scatter.thumbnails?.header.texts?.[index] ?? null;
  const title = `${noun[0][0].toUpperCase()}${noun[0].slice(1)} ${places?.[index] ?? index}`; // as other pages name it
  return { title, group: word(groups, index), rows, sentence };
}

/** The same in one sentence, for the live region. */
function sayPoint(scatter, index) {
  const { title, group, rows, sentence } = describePoint(scatter, index);
  const verdict = (row) => (row.right === null || row.right === undefined ? "" : row.right ? ", right" : ", wrong");
  return [group ? `${title}, ${group}` : title, ...(sentence ? [sentence] : []), ...rows.map((row) => `${row.name}: ${row.value}${verdict(row)}`)].join(". ");
}

function showCard(scatter, plot, index) {
  const { card } = scatter.frame;
  if (index < 0) {
    card.hidden = true;
    return;
  }
  if (card.dataset.index !== String(index) || card.dataset.stamp !== String(scatter.stamp)) fillCard(scatter, index);
  card.hidden = false;
  placeCard(scatter, plot, index);
}

function fillCard(scatter, index) {
  const { card } = scatter.frame;
  const { title, group, rows, sentence } = describePoint(scatter, index);
  card.dataset.index = String(index);
  card.dataset.stamp = String(scatter.stamp);
  const list = make("dl");
  for (const { name, shape, value, right } of rows) {
    const term = make("dt", {}, ...(shape ? [glyph(shape)] : []), make("span", { textContent: name }));
    const verdict = right === true ? " ✓" : right === false ? " ✗" : "";
    const definition = make("dd", { textContent: value + verdict, className: right === false ? "wrong" : "" });
    list.append(term, definition);
  }
  const head = make("div", { className: "card-head" }, make("strong", { textContent: title }));
  if (group) head.append(make("span", { textContent: group }));
  const said = sentence === null ? [] : [make("p", { className: "sentence", textContent: sentence })];
  card.replaceChildren(make("div", { className: "card-text" }, head, ...said, list));
  if (!scatter.thumbnails || scatter.thumbnails.header.texts || index >= scatter.thumbnails.header.images) return;
  const canvas = make("canvas", { className: "thumbnail" });
  canvas.dataset.index = String(index);
  const [width, height] = scatter.thumbnails.header.size;
  const enlarge = THUMBNAIL_SIDE / Math.max(width, height);
  canvas.style.width = `${Math.round(width * enlarge)}px`;
  canvas.style.height = `${Math.round(height * enlarge)}px`;
  card.prepend(canvas);
  scatter.thumbnails.draw(index, canvas).catch(() => canvas.remove());
}

/** Beside the point, on the side with room, inside the view. */
function placeCard(scatter, plot, index) {
  const { card } = scatter.frame;
  const body = card.parentElement.getBoundingClientRect();
  const stage = plot.stage.getBoundingClientRect();
  const x = stage.left - body.left + plot.positions[2 * index];
  const y = stage.top - body.top + plot.positions[2 * index + 1];
  const { offsetWidth: width, offsetHeight: height } = card;
  const left = x + 14 + width <= body.width ? x + 14 : Math.max(0, x - 14 - width);
  card.style.left = `${Math.round(Math.min(left, Math.max(0, body.width - width)))}px`;
  card.style.top = `${Math.round(Math.min(Math.max(0, y - height / 2), Math.max(0, body.height - height)))}px`;
}
