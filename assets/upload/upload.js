// Sends files in parts to the app's server. A file is known by its digest: what the server has is not sent again, and
// what broke off goes on where it was. The queue outlives its element, so that a page may be left and come back to.

const PART = 4 * 2 ** 20; // bytes sent at a time
const PIECE = 2 ** 20; // bytes read at a time
const TRIES = 6; // of a part that the network lost
const PAUSE = 700; // ms before another try, longer each time
const queues = (globalThis.mergelensUploads ??= new Map()); // address → queue
const drawn = new WeakMap(); // parent element → what is drawn in it

const wait = (time) => new Promise((done) => setTimeout(done, time));

class Refused extends Error {}

class Queue {
  constructor(address) {
    this.address = address;
    this.items = [];
    this.faults = [];
    this.viewers = new Set();
    this.working = false;
    this.stopped = null;
  }

  add(files) {
    if (!this.working) {
      this.items = [];
      this.faults = [];
    }
    for (const { file, name } of files) this.items.push({ file, name, read: 0, sent: 0, state: "waiting" });
    this.tell();
    this.work();
  }

  async work() {
    if (this.working) return;
    this.working = true;
    this.stopped = new AbortController();
    for (let item; (item = this.items.find(({ state }) => state === "waiting")); ) {
      this.current = item;
      try {
        await this.carry(item);
      } catch (error) {
        item.state = "failed";
        if (this.stopped.signal.aborted) break;
        this.faults.push(error instanceof Refused ? error.message : `${item.name}: the connection broke off. Choose it again to go on.`);
      }
    }
    if (this.stopped.signal.aborted) this.items = this.items.filter(({ state }) => state === "here");
    this.working = false;
    this.tell(true);
  }

  /** Bring one file to the server. */
  async carry(item) {
    item.state = "reading";
    const digest = await this.digest(item);
    item.state = "sending";
    item.sent = await this.announce(item, digest);
    item.known = item.sent === item.file.size;
    while (item.sent < item.file.size) {
      item.sent = await this.send(item, digest);
      this.tell();
    }
    if (!item.known) await this.announce(item, digest); // puts it into its place
    item.state = "here";
    this.tell();
  }

  async digest(item) {
    const hash = new Sha256();
    for (let place = 0; place < item.file.size; place += PIECE) {
      hash.update(new Uint8Array(await item.file.slice(place, place + PIECE).arrayBuffer()));
      this.stopped.signal.throwIfAborted();
      item.read = Math.min(place + PIECE, item.file.size);
      if ((place / PIECE) % 8 === 0) this.tell();
    }
    return hash.digest();
  }

  async announce(item, sha256) {
    const said = JSON.stringify({ name: item.name, size: item.file.size, sha256 });
    const answer = await this.ask(this.address, { method: "POST", body: said, headers: { "Content-Type": "application/json" } });
    return answer.offset;
  }

  /** Send the next part; one that the network lost is tried again from where the server is. */
  async send(item, sha256) {
    for (let tried = 1; ; tried++) {
      const part = item.file.slice(item.sent, item.sent + PART);
      const headers = { "Upload-Offset": `${item.sent}`, "Upload-Length": `${item.file.size}`, "Content-Type": "application/octet-stream" };
      try {
        return (await this.ask(`${this.address}/${sha256}`, { method: "PATCH", body: part, headers })).offset;
      } catch (error) {
        if (error instanceof Refused || this.stopped.signal.aborted || tried === TRIES) throw error;
        await wait(PAUSE * tried);
        item.sent = await this.announce(item, sha256).catch(() => item.sent);
        if (item.sent === item.file.size) return item.sent;
      }
    }
  }

  async ask(address, options) {
    const answer = await fetch(address, { ...options, signal: this.stopped.signal });
    const said = await answer.json();
    if (answer.ok) return said;
    throw new Refused(said.error ?? `The server answered ${answer.status}.`);
  }

  stop() {
    this.stopped?.abort();
  }

  tell(ended = false) {
    for (const viewer of this.viewers) viewer(ended);
  }
}

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const size = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`);

/** Files below what was dropped, with their paths. */
async function dropped(transfer) {
  const found = [];
  const walk = async (entry) => {
    if (entry.isFile) {
      const file = await new Promise((done, fail) => entry.file(done, fail));
      found.push({ file, name: entry.fullPath.replace(/^\//, "") });
      return;
    }
    const reader = entry.createReader();
    for (let part; (part = await new Promise((done, fail) => reader.readEntries(done, fail))).length; )
      for (const inner of part) await walk(inner);
  };
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
  for (const entry of entries) await walk(entry);
  return found;
}

class View {
  constructor(root) {
    this.files = make("input", { type: "file", multiple: true, hidden: true });
    this.folder = make("input", { type: "file", multiple: true, hidden: true, webkitdirectory: true });
    this.text = make("span", { className: "hint" });
    const choose = make("button", { type: "button", textContent: "Choose files", onclick: () => this.files.click() });
    this.whole = make("button", { type: "button", textContent: "Choose a folder", onclick: () => this.folder.click() });
    this.bar = make("progress", { max: 1, value: 0 });
    this.bar.setAttribute("aria-label", "Share of the files that has been sent");
    this.status = make("span", { className: "status" });
    this.status.setAttribute("role", "status");
    this.cancel = make("button", { type: "button", className: "quiet", textContent: "Cancel", onclick: () => this.queue.stop() });
    this.work = make("div", { className: "work", hidden: true }, this.bar, make("div", { className: "line" }, this.status, this.cancel));
    this.faults = make("ul", { className: "faults" });
    this.faults.setAttribute("role", "alert");
    const zone = make("div", { className: "zone" }, make("div", { className: "choices" }, choose, this.whole), this.text);
    root.append(zone, this.work, this.faults, this.files, this.folder);
    for (const input of [this.files, this.folder]) {
      input.onchange = () => {
        this.take([...input.files].map((file) => ({ file, name: file.webkitRelativePath || file.name })));
        input.value = "";
      };
    }
    zone.ondragover = (event) => {
      event.preventDefault();
      zone.classList.add("over");
    };
    zone.ondragleave = () => zone.classList.remove("over");
    zone.ondrop = async (event) => {
      event.preventDefault();
      zone.classList.remove("over");
      this.take(await dropped(event.dataTransfer));
    };
    this.show = (ended) => {
      this.draw();
      if (ended) this.say();
    };
  }

  update(data, say) {
    this.data = data;
    this.say = () => say("ended", Date.now());
    this.text.textContent = data.hint;
    this.files.accept = data.accepts.join(",");
    this.whole.hidden = !data.folders;
    if (!queues.has(data.address)) queues.set(data.address, new Queue(data.address));
    this.queue?.viewers.delete(this.show);
    this.queue = queues.get(data.address);
    this.queue.viewers.add(this.show);
    this.draw();
  }

  /** Queue the files that are of a kind and size that the server takes. */
  take(found) {
    const visible = found.filter(({ name }) => !name.split("/").some((part) => part.startsWith(".")));
    const wanted = visible.filter(({ name }) => this.data.accepts.some((suffix) => name.toLowerCase().endsWith(suffix)));
    const large = wanted.filter(({ file }) => file.size > this.data.limit);
    this.queue.place = this.data.place;
    this.queue.add(wanted.filter(({ file }) => file.size <= this.data.limit));
    for (const { file } of large)
      this.queue.faults.push(`${file.name} has ${size(file.size)}; up to ${size(this.data.limit)} are taken. Put it into a folder on the server.`);
    const left = visible.length - wanted.length;
    const other = visible.find((item) => !wanted.includes(item));
    if (left) this.queue.faults.push(`${left === 1 ? other.name : `${left} files, such as ${other.name},`} left out: only ${this.data.accepts.join(", ")} are taken.`);
    this.draw();
  }

  draw() {
    const { items, faults, working, current } = this.queue;
    const past = !working && this.queue.place !== this.data.place; // of another step, which is done
    this.work.hidden = items.length === 0 || past;
    this.faults.hidden = past;
    const all = items.reduce((sum, { file }) => sum + file.size, 0) || 1;
    const here = items.filter(({ state }) => state === "here");
    const done = items.reduce((sum, item) => sum + (item.state === "here" ? item.file.size : 0.2 * item.read + 0.8 * item.sent), 0);
    this.bar.value = Math.min(1, done / all);
    this.cancel.hidden = !working;
    const known = here.filter((item) => item.known).length;
    const again = known ? `, ${known === here.length ? "all" : known} known already and not sent again` : "";
    const what = working && current ? `${current.state === "reading" ? "Reading" : "Sending"} ${current.name} · ` : "";
    this.status.textContent = `${what}${here.length} of ${items.length} ${items.length === 1 ? "file" : "files"} here (${size(all)})${working ? "" : again}`;
    this.faults.replaceChildren(...faults.map((text) => make("li", { textContent: text })));
  }

  leave() {
    this.queue?.viewers.delete(this.show);
  }
}

export default function ({ data, parentElement, setTriggerValue }) {
  if (!drawn.has(parentElement)) drawn.set(parentElement, new View(parentElement.querySelector(".upload")));
  const view = drawn.get(parentElement);
  view.update(data, setTriggerValue);
  return () => {
    if (!parentElement.isConnected) view.leave();
  };
}
