// What stands along a dimension: where its ticks are, and what an element of it is called.

const DAY = 864e5;
const TIMES = [
  1, 1e3, 5e3, 15e3, 6e4, 3e5, 9e5, 36e5, 3 * 36e5, 6 * 36e5, 12 * 36e5, DAY, 2 * DAY, 7 * DAY, 14 * DAY,
];
const MONTHS = [1, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400, 6000, 12000];

export function plain(value) {
  if (value === null || value === undefined) return '';
  if (typeof value !== 'number') return String(value);
  if (Number.isNaN(value)) return 'NaN';
  if (!Number.isFinite(value)) return value > 0 ? '∞' : '−∞';
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value).replace('-', '−');
  const size = Math.abs(value);
  const text = size >= 1e6 || (size < 1e-4 && size > 0) ? value.toExponential(4) : value.toPrecision(6);
  return (text.includes('e') ? text.replace(/\.?0+e/, 'e') : text.replace(/\.?0+$/, '')).replace('-', '−');
}

const UPPER = { '-': '⁻', 0: '⁰', 1: '¹', 2: '²', 3: '³', 4: '⁴', 5: '⁵', 6: '⁶', 7: '⁷', 8: '⁸', 9: '⁹' };

/** Units as people write them: °N for degrees_north, m s⁻¹ for m s-1. */
export function unit(text) {
  if (typeof text !== 'string') return '';
  const side = /^degrees?_?(north|east|n|e)$/i.exec(text);
  if (side) return `°${side[1][0].toUpperCase()}`;
  if (/^(deg|degrees?)_?(c|celsius)$|^celsius$/i.test(text)) return '°C';
  const raised = (_, before, letters, digits) => before + letters + [...digits].map((each) => UPPER[each]).join('');
  return text.replace(/(^|[\s*/.(])([A-Za-zµ]+)(?:\^|\*\*)?(-\d)(?!\d)/g, raised).replace(/(^|[\s*/.(])([cmk]?m|s)(?:\^|\*\*)?([2-4])(?!\d)/g, raised);
}

const DEGREES = [1, 2, 5, 10, 15, 30, 45, 60, 90, 180];

export function niceStep(span, count, units = '') {
  const raw = span / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  if (raw > 1 && raw <= 180 && /^degrees?_/.test(units)) return DEGREES.find((each) => each >= raw);
  return [1, 2, 5, 10].find((each) => each * power >= raw * 0.999) * power;
}

function fixed(value, step) {
  const digits = Math.max(0, Math.min(12, -Math.floor(Math.log10(step) + 1e-9)));
  return (Math.abs(value) >= 1e7 ? value.toExponential(3) : value.toFixed(digits)).replace(/^-(?=0(\.0*)?$)/, '').replace('-', '−');
}

const two = (n) => String(n).padStart(2, '0');

export function time(ms, step = 0) {
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return '';
  const day = `${date.getUTCFullYear()}-${two(date.getUTCMonth() + 1)}-${two(date.getUTCDate())}`;
  const clock = `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}`;
  if (step >= 350 * DAY) return String(date.getUTCFullYear());
  if (step >= 27 * DAY) return day.slice(0, 7);
  if (step >= DAY) return day;
  const seconds = ms % 6e4 ? `:${two(date.getUTCSeconds())}` : '';
  if (step) return ms % DAY === 0 ? day.slice(5) : clock + seconds;
  return ms % DAY === 0 ? day : `${day} ${clock}${seconds}`;
}

function timeTicks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const small = TIMES.find((step) => step >= raw);
  if (small) {
    const out = [];
    for (let t = Math.ceil(low / small) * small; t <= high; t += small) out.push(t);
    return { out, step: small };
  }
  const months = MONTHS.find((step) => step * 30.44 * DAY >= raw) ?? 12000;
  const begin = new Date(low), out = [];
  let month = begin.getUTCFullYear() * 12 + begin.getUTCMonth();
  for (month = Math.ceil(month / months) * months; out.length < 200; month += months) {
    const at = new Date(0);
    at.setUTCFullYear(Math.floor(month / 12), month % 12, 1);
    if (at.getTime() > high) break;
    if (at.getTime() >= low) out.push(at.getTime());
  }
  return { out, step: months * 30.44 * DAY };
}

export class Axis {
  constructor(info, size, name, number) {
    this.info = info?.values?.length ? info : null;
    this.size = size;
    this.name = name || `dim ${number}`;
    const values = this.info?.kind === 'text' ? null : this.info?.values;
    this.values = values && values.every((each) => each !== null) ? values : null;
    this.rising = null;
    if (this.values?.length > 1) {
      const signs = this.values.slice(1).map((each, k) => Math.sign(each - this.values[k]));
      if (signs.every((sign) => sign === signs[0]) && signs[0]) this.rising = signs[0] > 0;
    }
    /** Whether larger indices belong further up. */
    this.up = Boolean(this.info?.up && this.rising);
  }

  get title() {
    const units = this.info?.units && this.info.kind !== 'time' ? ` (${unit(this.info.units)})` : '';
    return this.name + units;
  }

  /** The coordinate at an index, between known ones by proportion. */
  value(index) {
    if (!this.values) return null;
    const { first, step } = this.info, at = (index - first) / step, k = Math.max(0, Math.min(this.values.length - 2, Math.floor(at)));
    if (this.values.length === 1) return this.values[0];
    return this.values[k] + (at - k) * (this.values[k + 1] - this.values[k]);
  }

  index(value) {
    let low = 0, high = this.values.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if ((this.values[middle] <= value) === this.rising) low = middle; else high = middle;
    }
    const share = (value - this.values[low]) / (this.values[high] - this.values[low] || 1);
    return this.info.first + (low + share) * this.info.step;
  }

  /** What one element is called. */
  label(index) {
    const whole = Math.max(0, Math.min(this.size - 1, Math.floor(index)));
    if (this.info?.kind === 'text') return this.info.values[whole] ?? String(whole);
    if (!this.values) return String(whole);
    const value = this.value(whole);
    if (this.info.kind === 'time') return time(Math.round(value));
    return `${plain(Number(value.toPrecision(7)))} ${unit(this.info.units)}`.trimEnd();
  }

  /** Ticks between two places; elements reach from index to index + 1, and their coordinate is in the middle. */
  ticks(low, high, pixels, room) {
    const begin = Math.max(0, low), end = Math.min(this.size, high), span = end - begin;
    if (span <= 0) return [];
    const count = Math.max(1, (pixels * span / (high - low)) / room);
    if (this.values && this.rising !== null && span > 1) {
      const ends = [this.value(begin - 0.5), this.value(end - 0.5)].sort((a, b) => a - b);
      const place = (value) => this.index(value) + 0.5;
      if (this.info.kind === 'time') {
        const { out, step } = timeTicks(ends[0], ends[1], count);
        return out.map((value) => ({ at: place(value), text: time(value, step) }));
      }
      const step = niceStep(ends[1] - ends[0], count, this.info.units), out = [];
      for (let k = Math.ceil(ends[0] / step - 1e-9); k * step <= ends[1] + 1e-9 * step; k++) out.push({ at: place(k * step), text: fixed(k * step, step) });
      return out;
    }
    const step = Math.max(1, Math.round(niceStep(span, count))), out = [];
    for (let i = Math.ceil(begin / step) * step; i < end; i += step) out.push({ at: i + 0.5, text: this.info ? this.label(i) : String(i) });
    return out;
  }
}
