// Colour maps: a few anchors each, joined in OKLab, where equal steps look equal.

const ANCHORS = {
  deep: ['#0d0f2b', '#233a7c', '#1d7392', '#35a98a', '#a5d468', '#fbf3a9'],
  ember: ['#0b0714', '#46146a', '#9d2a6f', '#e0544f', '#fba24b', '#fdf2bf'],
  frost: ['#071522', '#12446b', '#2f82ad', '#84c2da', '#eef8fb'],
  moss: ['#0c1a13', '#1f5139', '#5d8d3f', '#bebc5a', '#f8f1c7'],
  gray: ['#000000', '#ffffff'],
  balance: ['#132f63', '#3c7bbd', '#b5d2e8', '#f6f4f0', '#efbfa5', '#c85d46', '#66101e'],
  tide: ['#0b4641', '#3b9989', '#bcdfd3', '#f6f3ea', '#e4cf9d', '#ae7c2a', '#573405'],
  wheel: ['#6a4ea0', '#2f8eb4', '#57b267', '#d7b03c', '#d85f4b', '#a7478e', '#6a4ea0'],
};

export const MAPS = [...Object.keys(ANCHORS), 'labels'];
const SIZE = 512;

const toLinear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const toGamma = (c) => (c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055);

function oklab(hex) {
  const [r, g, b] = [1, 3, 5].map((at) => toLinear(parseInt(hex.slice(at, at + 2), 16) / 255));
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s];
}

function rgb([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s]
    .map((c) => Math.round(255 * toGamma(Math.min(1, Math.max(0, c)))));
}

const distance = (p, q) => Math.hypot(p[0] - q[0], p[1] - q[1], p[2] - q[2]);

/** The colours of a map, one packed pixel (ABGR) each, at equal distances along its way through OKLab. */
function table(name) {
  const points = ANCHORS[name].map(oklab);
  const way = [0];
  for (let k = 1; k < points.length; k++) way.push(way[k - 1] + distance(points[k - 1], points[k]));
  const out = new Uint32Array(SIZE);
  for (let i = 0, k = 1; i < SIZE; i++) {
    const at = (i / (SIZE - 1)) * way.at(-1);
    while (k < points.length - 1 && at > way[k]) k++;
    const share = (at - way[k - 1]) / (way[k] - way[k - 1] || 1);
    const [r, g, b] = rgb(points[k - 1].map((p, c) => p + share * (points[k][c] - p)));
    out[i] = 0xff000000 | (b << 16) | (g << 8) | r;
  }
  return out;
}

const tables = new Map();
export function colours(name) {
  if (!ANCHORS[name]) return null;
  if (!tables.has(name)) tables.set(name, table(name));
  return tables.get(name);
}

function label(value) {
  let h = Math.imul(value ^ (value >>> 16), 0x45d9f3b);
  h = Math.imul(h ^ (h >>> 15), 0x2c1b3c6d) >>> 0;
  const angle = ((h & 1023) / 1023) * 2 * Math.PI, lightness = 0.55 + ((h >>> 10) & 255) / 255 * 0.28;
  const chroma = 0.1 + ((h >>> 18) & 255) / 255 * 0.06;
  const [r, g, b] = rgb([lightness, chroma * Math.cos(angle), chroma * Math.sin(angle)]);
  return 0xff000000 | (b << 16) | (g << 8) | r;
}

export const css = (pixel) => `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`;

/** A function from a value to a place in [0, 1]; values that are none, or that have no logarithm, give NaN. */
export function scaler({ low, high, log, turn }) {
  const f = log ? (v) => (v > 0 ? Math.log10(v) : NaN) : (v) => v;
  const a = log ? f(Math.max(low, 1e-300)) : low, b = f(high);
  const span = b - a || 1;
  return turn ? (v) => 1 - (f(v) - a) / span : (v) => (f(v) - a) / span;
}

/** Colour values into pixels: what is no number is left clear. */
export function paint(values, pixels, look) {
  const size = pixels.length;
  if (look.map === 'labels') {
    const known = new Map([[0, 0]]);
    for (let i = 0; i < size; i++) {
      const value = values[i];
      if (!known.has(value)) known.set(value, Number.isFinite(value) ? label(value % 4294967296 | 0) : 0);
      pixels[i] = known.get(value);
    }
    return;
  }
  const scale = scaler(look), ramp = colours(look.map), last = SIZE - 1;
  if (!look.log) { // the usual case, without a call for each pixel
    const slope = (look.turn ? -1 : 1) * SIZE / (look.high - look.low || 1);
    const shift = look.turn ? SIZE : 0;
    for (let i = 0; i < size; i++) {
      const at = (values[i] - look.low) * slope + shift;
      pixels[i] = at !== at ? 0 : ramp[at < 0 ? 0 : at > last ? last : at | 0];
    }
    return;
  }
  for (let i = 0; i < size; i++) {
    const at = scale(values[i]) * SIZE;
    pixels[i] = at !== at ? 0 : ramp[at < 0 ? 0 : at > last ? last : at | 0];
  }
}

export function paintColours(values, pixels, count) {
  for (let i = 0, k = 0; i < pixels.length; i++, k += count) {
    const alpha = count === 4 ? values[k + 3] : 255;
    pixels[i] = (alpha << 24) | (values[k + 2] << 16) | (values[k + 1] << 8) | values[k];
  }
}

/** The least and greatest values, and percentiles, of a sample that is quick to sort. */
export function spread(values) {
  const stride = Math.max(1, Math.floor(values.length / 200000));
  let low = Infinity, high = -Infinity;
  const kept = [];
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
    if (i % stride === 0) kept.push(value);
  }
  const sorted = Float64Array.from(kept).sort();
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.max(0, Math.round(share * (sorted.length - 1))))];
  return { low, high, some: low <= high, at: (p) => (p === 0 ? low : p === 1 ? high : at(p)) };
}
