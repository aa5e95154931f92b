// Says once that what comes first on the page has been drawn, so that what is large to load may follow.

const POLL = 60; // ms
const PATIENCE = 4000; // ms after which the rest follows in any case

export default function ({ data, setTriggerValue }) {
  const started = performance.now();
  const there = () => globalThis[data.after] === true;
  const say = () => setTriggerValue("ready", true);
  let frame = 0;
  const timer = setInterval(() => {
    if (!there() && performance.now() - started < PATIENCE) return;
    clearInterval(timer);
    frame = requestAnimationFrame(() => (frame = requestAnimationFrame(say)));
  }, POLL);
  return () => {
    clearInterval(timer);
    cancelAnimationFrame(frame);
  };
}
