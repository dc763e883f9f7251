// Series and histograms.

import { plain, niceStep } from './axis.js';
import { colours, css, scaler } from './colour.js';

const NS = 'http://www.w3.org/2000/svg';

function element(parent, name, attributes, text) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

/** Draw the values along a dimension into an SVG; return the function from a place in it to an index. */
export function drawSeries(svg, series, axis, here, formatted = plain) {
  svg.replaceChildren();
  const width = svg.clientWidth || 600, height = svg.clientHeight || 150;
  const box = { x: 58, y: 8, w: width - 74, h: height - 32 }, { values, start, step } = series;
  const finite = Array.from(values).filter(Number.isFinite);
  const text = (x, y, content, anchor) => element(svg, 'text', { x, y, 'text-anchor': anchor }, content);
  if (!finite.length) { text(width / 2, height / 2, 'nothing but missing values', 'middle'); return () => null; }
  let low = finite.reduce((a, b) => Math.min(a, b)), high = finite.reduce((a, b) => Math.max(a, b));
  if (low === high) { const room = Math.abs(low) / 10 || 1; low -= room; high += room; }
  const x = (index) => box.x + (index + 0.5) / axis.size * box.w, y = (value) => box.y + (high - value) / (high - low) * box.h;
  const each = niceStep(high - low, Math.max(3, box.h / 30));
  for (let k = Math.ceil(low / each); k * each <= high; k++) {
    const at = y(k * each).toFixed(1);
    element(svg, 'line', { x1: box.x, x2: box.x + box.w, y1: at, y2: at, class: 'rule' });
    text(box.x - 7, +at + 4, formatted(Number((k * each).toPrecision(12))), 'end');
  }
  let end = -Infinity;
  for (const { at, text: content } of axis.ticks(0, axis.size, box.w, 92)) {
    const place = x(at - 0.5), half = content.length * 3.4;
    if (place - half < end + 6 || place + half > width || place < box.x - 1 || place > box.x + box.w + 1) continue;
    text(place, height - 7, content, 'middle');
    end = place + half;
  }
  let path = '', open = false;
  values.forEach((value, k) => {
    if (!Number.isFinite(value)) { open = false; return; }
    path += `${open ? 'L' : 'M'}${x(start + k * step).toFixed(1)} ${y(value).toFixed(1)}`;
    open = true;
  });
  element(svg, 'path', { d: path, class: 'line' });
  if (values.length <= 60) values.forEach((value, k) => { if (Number.isFinite(value)) element(svg, 'circle', { cx: x(start + k * step), cy: y(value), r: values.length > 30 ? 1.8 : 2.6, class: 'dot' }); });
  if (here !== null) { const at = x(here).toFixed(1); element(svg, 'line', { x1: at, x2: at, y1: box.y, y2: box.y + box.h, class: 'here' }); }
  return (px) => Math.max(0, Math.min(axis.size - 1, Math.floor((px - box.x) / box.w * axis.size)));
}

/** The histogram of what is seen, coloured as it is, with the ends of the range to be drawn. */
export class Histogram {
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.counts = null;
    let held = null;
    canvas.addEventListener('pointerdown', (event) => {
      if (!this.counts) return;
      canvas.setPointerCapture(event.pointerId);
      const value = this.#value(event), { low, high } = this.look;
      held = Math.abs(value - low) < Math.abs(value - high) ? 'low' : 'high';
    });
    canvas.addEventListener('pointermove', (event) => {
      if (!held) return;
      const value = this.#value(event), { low, high } = this.look;
      this.changed(held === 'low' ? Math.min(value, high) : low, held === 'high' ? Math.max(value, low) : high);
    });
    const drop = () => { held = null; };
    canvas.addEventListener('pointerup', drop);
    canvas.addEventListener('pointercancel', drop);
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  #value(event) {
    const box = this.canvas.getBoundingClientRect(), share = (event.clientX - box.left) / box.width;
    return this.low + Math.max(0, Math.min(1, share)) * (this.high - this.low);
  }

  set(values, spread, look) {
    this.look = look;
    if (!spread.some) { this.counts = null; this.draw(); return; }
    const low = Math.min(spread.low, look.low), high = Math.max(spread.high, look.high), bins = 72;
    const counts = new Float64Array(bins), scale = bins / (high - low || 1);
    for (let i = 0; i < values.length; i++) {
      const at = (values[i] - low) * scale;
      if (at === at) counts[Math.max(0, Math.min(bins - 1, at | 0))]++;
    }
    [this.counts, this.low, this.high] = [counts, low, high === low ? low + 1 : high];
    this.draw();
  }

  restyle(look) {
    this.look = look;
    this.draw();
  }

  draw() {
    const { canvas, counts, look } = this, scale = window.devicePixelRatio || 1, ctx = canvas.getContext('2d');
    const w = canvas.clientWidth, h = canvas.clientHeight;
    canvas.width = Math.round(w * scale);
    canvas.height = Math.round(h * scale);
    ctx.setTransform(scale, 0, 0, scale, 0, 0);
    if (!counts || !look) return;
    const style = getComputedStyle(document.documentElement), ink = (name) => style.getPropertyValue(name).trim();
    const ramp = colours(look.map), at = scaler(look), bar = 14, top = h - bar - 6, n = counts.length;
    const most = Math.sqrt(counts.reduce((a, b) => Math.max(a, b)) || 1), each = w / n;
    const colour = (value) => { const share = at(value); return ramp && share === share ? css(ramp[Math.max(0, Math.min(ramp.length - 1, share * ramp.length | 0))]) : ink('--faint'); };
    counts.forEach((count, k) => {
      const value = this.low + (k + 0.5) / n * (this.high - this.low), tall = Math.sqrt(count) / most * (top - 6);
      const inside = value >= look.low && value <= look.high;
      ctx.fillStyle = inside ? ink('--accent') : ink('--faint');
      ctx.globalAlpha = inside ? 0.75 : 0.35;
      ctx.fillRect(k * each + 0.4, top - tall, Math.max(0.6, each - 0.8), tall);
    });
    ctx.globalAlpha = 1;
    for (let px = 0; px < w; px++) {
      ctx.fillStyle = colour(this.low + (px + 0.5) / w * (this.high - this.low));
      ctx.fillRect(px, top + 5, 1.2, bar);
    }
    ctx.fillStyle = ctx.strokeStyle = ink('--ink');
    for (const value of [look.low, look.high]) {
      const x = Math.max(1, Math.min(w - 1, (value - this.low) / (this.high - this.low) * w));
      ctx.globalAlpha = 0.7;
      ctx.fillRect(x - 0.5, 2, 1, top + bar + 3);
      ctx.globalAlpha = 1;
      ctx.beginPath();
      ctx.roundRect(x - 3, top + 2, 6, bar + 4, 3);
      ctx.fillStyle = ink('--card');
      ctx.fill();
      ctx.lineWidth = 1.3;
      ctx.stroke();
    }
  }
}
