// Films: the same images over the values of one parameter. Frames are exact; between them points are interpolated, and
// numbers stay those of the nearest frame.

const FRAME_MS = 320; // from one frame to the next while a film plays
const SETTLE_MS = 160; // to the nearest frame when the slider is let go
const TELL_MS = 300; // rest after which Python hears of a position
const LEAP = 5; // frames of Page Up and Page Down
const UNPLACED = -32768;
const UNKNOWN_SHIFT = 0xffff;

class Film {
  constructor({ header, columns }) {
    const facts = header.film;
    const count = header.points;
    Object.assign(this, { facts, count, key: header.key, last: facts.texts.length - 1 });
    this.alive = facts.texts.map((_, frame) => frame).filter((frame) => !(frame in facts.failed));
    this.panels = facts.panels.map((panel, p) => ({
      ...panel,
      points: columns[`points${p}`],
      predicted: columns[`predicted${p}`],
      shift: columns[`shift${p}`],
      moves: columns[`points${p}`].length > 2 * count,
    }));
    this.truth = columns.truth;
    this.start = columns.start; // where the classes of an image's task begin in the vocabulary
    this.tasks = columns.task;
    this.judged = Uint8Array.from(columns.groups, (group) => (header.graded.includes(group) ? 0 : 1)); // right or wrong
    this.unknown = columns.predicted0.BYTES_PER_ELEMENT > 1 ? 0xffff : 0xff;
    this.coordinates = this.panels.map(() => new Float32Array(2 * count));
    this.present = this.panels.map(() => new Uint8Array(count));
    this.predictions = new Uint16Array(this.panels.length * count);
    this.frame = -1;
  }

  /** The frames around a position, and how far it is from the first to the second. */
  around(position) {
    const after = this.alive.find((frame) => frame >= position) ?? this.alive.at(-1);
    const before = this.alive.findLast((frame) => frame <= position) ?? this.alive[0];
    return { before, after, share: after > before ? (position - before) / (after - before) : 0 };
  }

  nearest(position) {
    const { before, after, share } = this.around(position);
    return share > 0.5 ? after : before;
  }

  /** The next frame that can be shown, some frames on or back. */
  step(position, by) {
    const { before, after } = this.around(position);
    const number = this.alive.indexOf(by > 0 ? before : after) + by;
    return this.alive[Math.min(Math.max(number, 0), this.alive.length - 1)];
  }

  /** Put the points of every panel where they are at a position. */
  place(position) {
    const { before, after, share } = this.around(position);
    const { low, step } = this.facts.grid;
    this.panels.forEach(({ points, moves }, p) => {
      if (!moves && this.placed) return;
      const out = this.coordinates[p];
      const size = 2 * this.count;
      const from = moves ? before * size : 0;
      const to = moves ? after * size : 0;
      for (let i = 0; i < size; i++) {
        const one = points[from + i];
        const other = points[to + i];
        const known = one !== UNPLACED && other !== UNPLACED;
        out[i] = known ? low[i & 1] + step * (one + (other - one) * share + 32767) : NaN;
        this.present[p][i >> 1] = known ? 1 : 0;
      }
    });
    this.placed = true; // what stands still stays there
  }

  /** Take over what an exact frame predicts; returns whether that is another frame than before. */
  turnTo(frame) {
    if (this.frame === frame) return false;
    this.frame = frame;
    this.panels.forEach(({ predicted, moves }, p) => {
      const from = moves ? frame * this.count : 0;
      for (let i = 0; i < this.count; i++) {
        const value = predicted[from + i];
        this.predictions[p * this.count + i] = value === this.unknown ? MISSING : value + this.start[i];
      }
    });
    return true;
  }

  right(panel, i) {
    return this.predictions[panel * this.count + i] === this.truth[i];
  }

  /** Whether a panel's answer is known, and right or wrong: those that are numbers are near or far. */
  known(panel, i) {
    return this.judged[i] === 1 && this.predictions[panel * this.count + i] !== MISSING;
  }

  /** The live colour of every panel's points: right (0) or wrong (1), or the distance to the expert. */
  column(kind) {
    const column = kind === "shift" ? new Float32Array(this.predictions.length) : new Uint16Array(this.predictions.length);
    this.panels.forEach(({ shift, moves }, p) => {
      const from = moves ? this.frame * this.count : 0;
      for (let i = 0; i < this.count; i++) {
        const at = p * this.count + i;
        if (kind === "shift") column[at] = shift[from + i] === UNKNOWN_SHIFT ? NaN : shift[from + i] * this.facts.shiftStep;
        else column[at] = this.known(p, i) ? (this.right(p, i) ? 0 : 1) : MISSING;
      }
    });
    return column;
  }
}

/** Take a film up with new points; it begins where the page says, and stays where the hand has put it. */
function openFilm(scatter, header) {
  const { content, kept } = scatter;
  if (!content.header.film) {
    stopFilm(scatter);
    scatter.film = null;
    return;
  }
  if (scatter.film?.key !== content.header.key) scatter.film = new Film(content);
  const said = header.film ?? { at: 0, revision: 0 };
  if (kept.filmKey !== content.header.key || said.revision > kept.filmRevision) {
    stopFilm(scatter);
    Object.assign(kept, { filmKey: content.header.key, filmRevision: said.revision, filmAt: said.at, filmTold: null });
  }
  kept.filmAt = Math.min(Math.max(kept.filmAt, 0), scatter.film.last);
  scatter.coordinates = scatter.film.coordinates;
  content.columns.predictions = scatter.film.predictions;
  scatter.film.place(kept.filmAt);
  scatter.film.turnTo(scatter.film.nearest(kept.filmAt));
}

/** Move to a position: points at once, numbers where another exact frame is nearest. */
function moveFilm(scatter, position) {
  const { film, kept } = scatter;
  const since = performance.now();
  kept.filmAt = Math.min(Math.max(position, 0), film.last);
  film.place(kept.filmAt);
  const turned = film.turnTo(film.nearest(kept.filmAt));
  if (turned && scatter.colour.live) scatter.paint = colourPoints(scatter.colour, film.column(scatter.colour.live), scatter.count, scatter.theme);
  for (const plot of scatter.plots) plot.medians = null;
  updateActive(scatter);
  scatter.hovered = -1;
  scatter.stamp += turned ? 1 : 0;
  showFilm(scatter, turned);
  scatter.scrubbed = (scatter.scrubbed ?? 0) + performance.now() - since;
  scatter.request("plane", true);
}

/** Go to a frame, gliding from where the film is unless motion is not wanted. */
function glideTo(scatter, frame, milliseconds = SETTLE_MS) {
  stopFilm(scatter);
  const { kept } = scatter;
  const from = kept.filmAt;
  if (calm() || Math.abs(frame - from) < 1e-3) {
    moveFilm(scatter, frame);
    tellFilm(scatter);
    return;
  }
  let began = null;
  const step = (now) => {
    began ??= now;
    const share = Math.min((now - began) / milliseconds, 1);
    moveFilm(scatter, share === 1 ? frame : from + (frame - from) * share * (2 - share));
    if (share < 1) {
      scatter.gliding = requestAnimationFrame(step);
      return;
    }
    stopFilm(scatter);
    tellFilm(scatter);
  };
  scatter.heading = frame;
  scatter.gliding = requestAnimationFrame(step);
}

/** Go some frames on or back, from where the film is or is on its way to. */
function stepFilm(scatter, by) {
  glideTo(scatter, scatter.film.step(scatter.heading ?? scatter.kept.filmAt, by));
}

const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

function playFilm(scatter) {
  const { film, kept } = scatter;
  const ended = kept.filmAt >= film.alive.at(-1);
  if (calm()) {
    glideTo(scatter, ended ? film.alive[0] : film.step(kept.filmAt, 1));
    return;
  }
  stopFilm(scatter);
  const from = ended ? film.alive[0] : kept.filmAt;
  let began = null;
  const step = (now) => {
    began ??= now;
    const position = Math.min(from + (now - began) / FRAME_MS, film.alive.at(-1));
    moveFilm(scatter, position);
    if (position < film.alive.at(-1)) scatter.gliding = requestAnimationFrame(step);
    else {
      stopFilm(scatter);
      tellFilm(scatter);
    }
  };
  scatter.rolling = true;
  showPlaying(scatter);
  scatter.gliding = requestAnimationFrame(step);
}

function stopFilm(scatter) {
  if (scatter.gliding) cancelAnimationFrame(scatter.gliding);
  scatter.gliding = scatter.heading = null;
  scatter.rolling = false;
  showPlaying(scatter);
}

/** Tell Python, and whoever listens, where the film stands; once, when it rests. */
function tellFilm(scatter) {
  clearTimeout(scatter.telling);
  scatter.telling = setTimeout(() => {
    const { film, kept } = scatter;
    if (!film || scatter.gliding || kept.filmTold === `${film.key}:${film.frame}`) return;
    kept.filmTold = `${film.key}:${film.frame}`;
    kept.filmRevision += 1;
    scatter.announce(sayFilm(scatter));
    scatter.setStateValue("film", { key: film.key, frame: film.frame, revision: kept.filmRevision });
  }, TELL_MS);
}
