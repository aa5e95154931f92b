// SHA-256 of what comes in pieces (FIPS 180-4). The browser's own digest takes a file only as a whole, and only on pages
// served over HTTPS or by this machine.

const PRIMES = 64;
const BLOCK = 64; // bytes
const LENGTH = 56; // place of the length in the last block

function roots() {
  // The first 32 bits of the fractional parts of square and cube roots of the first primes.
  const fraction = (value) => Math.floor((value - Math.floor(value)) * 2 ** 32) >>> 0;
  const start = [];
  const constants = [];
  for (let number = 2; constants.length < PRIMES; number++) {
    let prime = true;
    for (let divisor = 2; divisor * divisor <= number; divisor++) if (number % divisor === 0) prime = false;
    if (!prime) continue;
    if (start.length < 8) start.push(fraction(Math.sqrt(number)));
    constants.push(fraction(Math.cbrt(number)));
  }
  return { start, constants };
}

const { start: START, constants } = roots();
const CONSTANTS = Uint32Array.from(constants);

class Sha256 {
  constructor() {
    this.state = Uint32Array.from(START);
    this.words = new Uint32Array(PRIMES);
    this.rest = new Uint8Array(BLOCK);
    this.held = 0; // bytes in the rest
    this.length = 0;
  }

  update(bytes) {
    this.length += bytes.length;
    let place = 0;
    if (this.held) {
      place = Math.min(BLOCK - this.held, bytes.length);
      this.rest.set(bytes.subarray(0, place), this.held);
      this.held += place;
      if (this.held < BLOCK) return this;
      this.block(this.rest, 0);
      this.held = 0;
    }
    for (; place + BLOCK <= bytes.length; place += BLOCK) this.block(bytes, place);
    this.rest.set(bytes.subarray(place));
    this.held = bytes.length - place;
    return this;
  }

  digest() {
    const bits = this.length * 8;
    const end = new Uint8Array(this.held < LENGTH ? BLOCK : 2 * BLOCK);
    end.set(this.rest.subarray(0, this.held));
    end[this.held] = 0x80;
    const view = new DataView(end.buffer);
    view.setUint32(end.length - 8, Math.floor(bits / 2 ** 32));
    view.setUint32(end.length - 4, bits >>> 0);
    for (let place = 0; place < end.length; place += BLOCK) this.block(end, place);
    return [...this.state].map((word) => word.toString(16).padStart(8, "0")).join("");
  }

  block(bytes, place) {
    const { state, words } = this;
    for (let i = 0; i < 16; i++, place += 4) {
      words[i] = (bytes[place] << 24) | (bytes[place + 1] << 16) | (bytes[place + 2] << 8) | bytes[place + 3];
    }
    for (let i = 16; i < PRIMES; i++) {
      const x = words[i - 15];
      const y = words[i - 2];
      const early = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const late = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      words[i] = (words[i - 16] + early + words[i - 7] + late) | 0;
    }
    let a = state[0];
    let b = state[1];
    let c = state[2];
    let d = state[3];
    let e = state[4];
    let f = state[5];
    let g = state[6];
    let h = state[7];
    for (let i = 0; i < PRIMES; i++) {
      const mixed = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const one = (h + mixed + ((e & f) ^ (~e & g)) + CONSTANTS[i] + words[i]) | 0;
      const turned = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const two = (turned + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + one) | 0;
      d = c;
      c = b;
      b = a;
      a = (one + two) | 0;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
  }
}
