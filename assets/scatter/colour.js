// Colours: from the palettes and values Python sends to one packed colour a point, for the theme in use.

const NAMED_FALLBACK = { background: [255, 255, 255], text: [49, 51, 63] };
const LEAST_CONTRAST_ON_DARK = 3;

/** Parse "#rgb", "#rrggbb" or "rgb(…)" into [r, g, b], or null. */
function parseColour(text) {
  const value = (text ?? "").trim();
  if (/^#[0-9a-f]{6}/i.test(value)) return [1, 3, 5].map((at) => parseInt(value.slice(at, at + 2), 16));
  if (/^#[0-9a-f]{3}$/i.test(value)) return [1, 2, 3].map((at) => parseInt(value[at] + value[at], 16));
  const numbers = /^rgba?\(([^)]+)\)/.exec(value)?.[1].match(/[\d.]+/g);
  return numbers && numbers.length >= 3 ? numbers.slice(0, 3).map(Number) : null;
}

const css = ([r, g, b], alpha = 1) => `rgba(${Math.round(r)}, ${Math.round(g)}, ${Math.round(b)}, ${alpha})`;
/** One pixel as the canvas stores it on a little-endian machine. */
const packColour = ([r, g, b]) => ((255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;
const mix = (from, to, share) => from.map((value, channel) => value + (to[channel] - value) * share);

function luminance(rgb) {
  const [r, g, b] = rgb.map((value) => {
    const share = value / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

/** Lighten a colour, keeping its hue, until it can be told from a dark background. */
function lifted(rgb, background) {
  let colour = rgb;
  const top = Math.max(...rgb, 1);
  for (let step = 1; step <= 20 && contrast(colour, background) < LEAST_CONTRAST_ON_DARK; step++) {
    const bright = rgb.map((value) => Math.min(255, (value * (top + (255 - top) * (step / 12))) / top));
    colour = mix(bright, [255, 255, 255], Math.max(0, step - 4) / 24);
  }
  return colour;
}

/** Read the theme from Streamlit's variables. */
function readTheme(root) {
  const style = getComputedStyle(root);
  const read = (name, fallback) => parseColour(style.getPropertyValue(name)) ?? fallback;
  const background = read("--st-background-color", NAMED_FALLBACK.background);
  const text = read("--st-text-color", NAMED_FALLBACK.text);
  return {
    background,
    text,
    primary: read("--st-primary-color", text),
    dark: luminance(background) < 0.2,
    grey: mix(background, text, 0.34),
    font: style.fontFamily || "sans-serif",
  };
}

function paletteFor(colour, theme) {
  if (theme.dark && colour.darkPalette) return colour.darkPalette.map(parseColour);
  const palette = colour.palette.map((hex) => parseColour(hex) ?? theme.grey);
  return theme.dark ? palette.map((rgb) => lifted(rgb, theme.background)) : palette;
}

/** Interpolate colour stops at a share of 0 to 1. */
function ramp(stops, share) {
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const below = Math.min(Math.floor(at), stops.length - 2);
  return stops.length === 1 ? stops[0] : mix(stops[below], stops[below + 1], at - below);
}

/**
 * Colours of all points: { shared, categories, of(panel), valueAt(panel, i), missing }.
 * `categories` are [r, g, b] a category, empty for a continuous colour; `of` gives a Uint32Array, one pixel a point.
 */
function colourPoints(colour, column, count, theme) {
  const grey = packColour(theme.grey);
  const columns = Math.max(1, Math.round(column.length / Math.max(count, 1)));
  const pixels = new Uint32Array(column.length);
  const categories = [];
  if (colour.kind === "categorical") {
    const palette = paletteFor(colour, theme);
    colour.names.forEach((_, category) => categories.push(palette[category % palette.length]));
    const packed = categories.map(packColour);
    for (let i = 0; i < column.length; i++) pixels[i] = column[i] === MISSING ? grey : packed[column[i]];
  } else {
    const stops = colour.stops.map((hex) => parseColour(hex) ?? theme.grey);
    const table = Array.from({ length: 256 }, (_, step) => packColour(ramp(stops, step / 255)));
    const scale = 255 / (colour.high - colour.low);
    for (let i = 0; i < column.length; i++) {
      const share = (column[i] - colour.low) * scale;
      pixels[i] = Number.isFinite(share) ? table[Math.round(Math.min(Math.max(share, 0), 255))] : grey;
    }
  }
  const start = (panel) => (columns > 1 ? panel * count : 0);
  return {
    shared: columns === 1,
    categories,
    of: (panel) => pixels.subarray(start(panel), start(panel) + count),
    valueAt: (panel, i) => column[start(panel) + i],
    values: (panel) => column.subarray(start(panel), start(panel) + count),
  };
}

const NUMBER = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** The colour variable of one point, in words. */
function describeValue(colour, value) {
  if (colour.kind === "categorical") return value === MISSING ? "unknown" : colour.names[value];
  if (!Number.isFinite(value)) return "unknown";
  return colour.unit ? `${NUMBER.format(value)} ${colour.unit}` : NUMBER.format(value);
}
