// Packets: reading the bytes that Python laid out (see pages/features/packing.py), and handing them from component to component.

const ARRAYS = { f4: Float32Array, i2: Int16Array, u2: Uint16Array, u4: Uint32Array, u1: Uint8Array };
const MISSING = 0xffff;

/** Read a packet into { header, columns }, each column a typed array of its own. */
function readPacket(bytes) {
  const headerLength = new DataView(bytes.buffer, bytes.byteOffset, 4).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + headerLength)));
  const columns = {};
  for (const [name, { dtype, shape, offset }] of Object.entries(header.columns)) {
    const Type = ARRAYS[dtype];
    const length = shape.reduce((product, side) => product * side, 1);
    const start = 4 + headerLength + offset;
    columns[name] = new Type(bytes.slice(start, start + length * Type.BYTES_PER_ELEMENT).buffer);
  }
  return { header, columns };
}

/** Unpack a little-endian bit set into one byte a point. */
function unpackBits(bits, count) {
  const mask = new Uint8Array(count);
  for (let i = 0; i < count; i++) mask[i] = (bits[i >> 3] >> (i & 7)) & 1;
  return mask;
}

/** Pack one byte a point into a base64 bit set. */
function packBits(mask) {
  const bits = new Uint8Array(Math.ceil(mask.length / 8));
  for (let i = 0; i < mask.length; i++) if (mask[i]) bits[i >> 3] |= 1 << (i & 7);
  let text = "";
  for (const byte of bits) text += String.fromCharCode(byte);
  return btoa(text);
}

// Carriers and views are separate components and so separate modules; they meet on this object.
const exchange = (globalThis[Symbol.for("mergelens.scatter")] ??= {
  packets: new Map(), // key → { bytes, holders }
  arrivals: new EventTarget(),
  views: new Map(), // key of a view → what it keeps across a change of page
});
