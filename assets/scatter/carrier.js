// A carrier brings one packet to the page and shows nothing; views take it from the exchange by its key.

const held = new WeakMap(); // parent element → key of the packet it brought

function release(key) {
  const packet = exchange.packets.get(key);
  if (packet && --packet.holders === 0) exchange.packets.delete(key);
}

export default function ({ data, parentElement }) {
  const { header } = readPacket(data);
  const before = held.get(parentElement);
  if (before !== header.key) {
    if (before !== undefined) release(before);
    const packet = exchange.packets.get(header.key);
    exchange.packets.set(header.key, { bytes: data, holders: (packet?.holders ?? 0) + 1 });
    held.set(parentElement, header.key);
    exchange.arrivals.dispatchEvent(new Event("packet"));
  }
  return () => {
    // A run that was overtaken by another is cleaned up at once; only a carrier that left the page lets go.
    if (parentElement.isConnected || !held.has(parentElement)) return;
    release(held.get(parentElement));
    held.delete(parentElement);
  };
}
