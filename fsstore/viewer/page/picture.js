// The picture: a window of two dimensions on a canvas, with axes, chunk grid, zoom and pan.

import { paint, paintColours } from './colour.js';

const LEFT = 76, BOTTOM = 40, TOP = 12, RIGHT = 16;

export class Picture {
  constructor(box, canvas, heard) {
    this.box = box;
    this.canvas = canvas;
    this.heard = heard; // {moved, pointed, chosen}
    this.window = null; // [y0, y1, x0, x1] in elements
    this.layers = []; // textures, the coarsest first
    this.grid = null;
    this.pin = null;
    this.square = 1; // how high an element is for its width; 0 stretches
    new ResizeObserver(() => this.#resized()).observe(box);
    this.#listen();
  }

  /** Show another array or other dimensions of it. */
  begin(rows, columns, square) {
    this.rows = rows;
    this.columns = columns;
    this.square = square;
    this.layers = [];
    this.grid = null;
    this.fit();
  }

  get plot() {
    return { x: LEFT, y: TOP, w: Math.max(10, this.box.clientWidth - LEFT - RIGHT), h: Math.max(10, this.box.clientHeight - TOP - BOTTOM) };
  }

  get whole() { return [0, this.rows.size, 0, this.columns.size]; }

  fit() {
    this.asked = null; // the window before it got the shape of the box; none for everything
    this.window = this.#shaped(this.whole);
    this.draw();
  }

  /** Return a window around another in which elements have the shape that they shall have. */
  #shaped([y0, y1, x0, x1]) {
    if (!this.square) return [y0, y1, x0, x1];
    const { w, h } = this.plot, wanted = (w / h) * this.square; // columns for each row
    const rows = y1 - y0, columns = x1 - x0, cy = (y0 + y1) / 2, cx = (x0 + x1) / 2;
    const tall = columns / rows > wanted ? columns / wanted : rows, wide = columns / rows > wanted ? columns : rows * wanted;
    return [cy - tall / 2, cy + tall / 2, cx - wide / 2, cx + wide / 2];
  }

  show(window) {
    this.asked = window;
    this.window = this.#shaped(window);
    this.draw();
  }

  #resized() {
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.box.clientWidth * scale);
    this.canvas.height = Math.round(this.box.clientHeight * scale);
    if (!this.window) return;
    if (this.asked) this.show(this.asked); else this.fit();
    this.heard.moved();
  }

  /** What is seen of the array, in whole elements, and the pixels for it. */
  get seen() {
    const [y0, y1, x0, x1] = this.window, { w, h } = this.plot, scale = Math.min(2, window.devicePixelRatio || 1);
    const cut = (low, high, size) => [Math.max(0, Math.floor(low)), Math.min(size, Math.ceil(high))];
    const ys = cut(y0, y1, this.rows.size), xs = cut(x0, x1, this.columns.size);
    const pixels = [h * (ys[1] - ys[0]) / (y1 - y0), w * (xs[1] - xs[0]) / (x1 - x0)];
    return { window: [...ys, ...xs], pixels: pixels.map((each) => Math.max(1, Math.min(1400, Math.round(each * scale)))) };
  }

  screenX(x) { const { plot, window: [, , a, b] } = this; return plot.x + (x - a) / (b - a) * plot.w; }

  screenY(y) {
    const { plot, window: [a, b] } = this, share = (y - a) / (b - a);
    return plot.y + (this.rows.up ? 1 - share : share) * plot.h;
  }

  /** The place in the array below a point of the box. */
  place(px, py) {
    const { plot, window: [y0, y1, x0, x1] } = this;
    const fy = (py - plot.y) / plot.h, fx = (px - plot.x) / plot.w;
    return [y0 + (this.rows.up ? 1 - fy : fy) * (y1 - y0), x0 + fx * (x1 - x0)];
  }

  /** Take numbers from the server as a layer, above those that are there. */
  add(numbers, look) {
    const [h, w] = numbers.shape;
    if (!h || !w) return;
    const texture = document.createElement('canvas');
    texture.width = w;
    texture.height = h;
    const layer = { numbers, texture, h, w, start: numbers.start, step: numbers.step };
    this.#paint(layer, look);
    const area = (each) => each.step[0] * each.step[1] + (each === layer ? 0 : 1e-9);
    this.layers = [...this.layers.slice(0, 1), ...this.layers.slice(-1), layer].filter((each, k, all) => all.indexOf(each) === k);
    if (this.layers.length > 1 && area(this.layers[0]) < area(layer)) this.layers = [layer];
    this.draw();
  }

  /** Take numbers in place of all layers. */
  replace(numbers, look) {
    this.layers = [];
    this.add(numbers, look);
  }

  #paint(layer, look) {
    const { texture, numbers, h, w } = layer, image = new ImageData(w, h), pixels = new Uint32Array(image.data.buffer);
    if (numbers.shape.length === 3) paintColours(numbers.values, pixels, numbers.shape[2]);
    else paint(numbers.values, pixels, look);
    texture.getContext('2d').putImageData(image, 0, 0);
  }

  repaint(look) {
    this.layers.forEach((layer) => this.#paint(layer, look));
    this.draw();
  }

  get latest() { return this.layers.at(-1); }

  /** The value of the finest layer at a place, and where it was read. */
  valueAt(y, x) {
    for (const { numbers, start, step, h, w } of [...this.layers].reverse()) {
      const r = Math.floor((y - start[0]) / step[0]), c = Math.floor((x - start[1]) / step[1]);
      if (r < 0 || c < 0 || r >= h || c >= w) continue;
      const many = numbers.shape[2] ?? 1, at = (r * w + c) * many;
      const middle = (k, i) => Math.min([this.rows, this.columns][k].size - 1, Math.floor(start[k] + i * step[k] + Math.floor(step[k] / 2)));
      return { value: many === 1 ? numbers.values[at] : [...numbers.values.slice(at, at + many)], at: [middle(0, r), middle(1, c)], exact: step[0] <= 1 && step[1] <= 1 };
    }
    return null;
  }

  zoom(factor, py, px) {
    const { plot } = this, [y, x] = this.place(px ?? plot.x + plot.w / 2, py ?? plot.y + plot.h / 2);
    const [y0, y1, x0, x1] = this.window, least = 4 / Math.max(plot.w, plot.h);
    const f = Math.max(factor, least, 2 / Math.max(y1 - y0, x1 - x0));
    const most = 1.6 * Math.max(this.rows.size / (y1 - y0), this.columns.size / (x1 - x0));
    const g = Math.min(f, Math.max(1, most));
    this.window = [y + (y0 - y) * g, y + (y1 - y) * g, x + (x0 - x) * g, x + (x1 - x) * g];
    this.#moved();
  }

  pan(dy, dx) {
    const [y0, y1, x0, x1] = this.window, { plot } = this;
    const sy = -dy / plot.h * (y1 - y0) * (this.rows.up ? -1 : 1), sx = -dx / plot.w * (x1 - x0);
    const keep = (low, high, shift, size) => Math.max(-high + (high - low) * 0.1, Math.min(size - low - (high - low) * 0.1, shift));
    const ry = keep(y0, y1, sy, this.rows.size), rx = keep(x0, x1, sx, this.columns.size);
    this.window = [y0 + ry, y1 + ry, x0 + rx, x1 + rx];
    this.#moved();
  }

  #moved() {
    this.asked = this.window;
    this.draw();
    this.heard.moved();
  }

  #listen() {
    const at = (event) => { const box = this.box.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    const fingers = new Map();
    let travelled = 0;
    this.box.addEventListener('wheel', (event) => {
      event.preventDefault();
      if (!this.window) return;
      const [x, y] = at(event);
      this.zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) * 0.0022), y, x);
    }, { passive: false });
    this.canvas.addEventListener('pointerdown', (event) => {
      if (!this.window) return;
      this.canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, at(event));
      if (fingers.size === 1) travelled = 0;
    });
    this.canvas.addEventListener('pointermove', (event) => {
      if (!this.window) return;
      const now = at(event), before = fingers.get(event.pointerId);
      if (!before) { if (event.pointerType === 'mouse') this.heard.pointed(now[0], now[1]); return; }
      if (fingers.size === 2) {
        const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
        const was = Math.hypot(before[0] - other[0], before[1] - other[1]), is = Math.hypot(now[0] - other[0], now[1] - other[1]);
        travelled = 99;
        this.zoom(was / Math.max(is, 1), (now[1] + other[1]) / 2, (now[0] + other[0]) / 2);
      } else {
        travelled += Math.hypot(now[0] - before[0], now[1] - before[1]);
        if (travelled > 4) {
          this.box.classList.add('dragging');
          this.heard.pointed(null);
          this.pan(now[1] - before[1], now[0] - before[0]);
        }
      }
      fingers.set(event.pointerId, now);
    });
    const up = (event) => {
      if (!fingers.delete(event.pointerId)) return;
      this.box.classList.remove('dragging');
      if (event.type === 'pointerup' && travelled <= 4 && !fingers.size) this.heard.chosen(...at(event));
    };
    this.canvas.addEventListener('pointerup', up);
    this.canvas.addEventListener('pointercancel', up);
    this.canvas.addEventListener('pointerleave', () => this.heard.pointed(null));
    this.canvas.addEventListener('dblclick', (event) => { const [x, y] = at(event); this.zoom(0.4, y, x); });
  }

  draw() {
    if (!this.window || !this.rows || this.drawing) return;
    this.drawing = requestAnimationFrame(() => { this.drawing = 0; this.#draw(); });
  }

  #draw() {
    const scale = window.devicePixelRatio || 1, ctx = this.canvas.getContext('2d'), { plot } = this;
    const style = getComputedStyle(document.documentElement), ink = (name) => style.getPropertyValue(name).trim();
    ctx.setTransform(scale, 0, 0, scale, 0, 0);
    ctx.clearRect(0, 0, this.box.clientWidth, this.box.clientHeight);
    ctx.save();
    ctx.beginPath();
    ctx.rect(plot.x, plot.y, plot.w, plot.h);
    ctx.clip();
    this.#ground(ctx, ink);
    ctx.imageSmoothingEnabled = false;
    this.layers.forEach((layer) => this.#drawLayer(ctx, layer));
    if (this.grid) this.#drawGrid(ctx, ink);
    if (this.pin) this.#drawPin(ctx);
    ctx.restore();
    this.#axes(ctx, ink);
  }

  #ground(ctx, ink) {
    const x0 = this.screenX(0), x1 = this.screenX(this.columns.size), ya = this.screenY(0), yb = this.screenY(this.rows.size);
    const [y0, y1] = ya < yb ? [ya, yb] : [yb, ya];
    ctx.fillStyle = ink('--void');
    ctx.fillRect(x0, y0, x1 - x0, y1 - y0);
    ctx.beginPath();
    ctx.rect(Math.max(x0, 0), Math.max(y0, 0), Math.min(x1, 1e4) - Math.max(x0, 0), Math.min(y1, 1e4) - Math.max(y0, 0));
    ctx.save();
    ctx.clip();
    ctx.strokeStyle = ink('--hatch');
    ctx.lineWidth = 1;
    ctx.beginPath();
    const { plot } = this;
    for (let k = -plot.h; k < plot.w; k += 8) { ctx.moveTo(plot.x + k, plot.y + plot.h); ctx.lineTo(plot.x + k + plot.h, plot.y); }
    ctx.stroke();
    ctx.restore();
  }

  #drawLayer(ctx, { texture, start, step, h, w }) {
    const x0 = this.screenX(start[1]), x1 = this.screenX(start[1] + w * step[1]);
    const ya = this.screenY(start[0]), yb = this.screenY(start[0] + h * step[0]);
    ctx.save();
    ctx.beginPath();
    const left = this.screenX(0), right = this.screenX(this.columns.size), a = this.screenY(0), b = this.screenY(this.rows.size);
    ctx.rect(left, Math.min(a, b), right - left, Math.abs(b - a));
    ctx.clip();
    ctx.translate(0, ya);
    ctx.scale(1, yb < ya ? -1 : 1);
    ctx.drawImage(texture, x0, 0, x1 - x0, Math.abs(yb - ya));
    ctx.restore();
  }

  #drawGrid(ctx, ink) {
    const { chunks: [cy, cx], map } = this.grid, [y0, y1, x0, x1] = this.window, { plot } = this;
    const dy = cy * plot.h / (y1 - y0), dx = cx * plot.w / (x1 - x0);
    if (map) {
      for (let r = 0; r < map.shape[0]; r++) for (let c = 0; c < map.shape[1]; c++) {
        if (map.values[r * map.shape[1] + c] !== 0) continue;
        const a = this.screenX((map.first[1] + c) * cx), b = this.screenX(Math.min(this.columns.size, (map.first[1] + c + 1) * cx));
        const p = this.screenY((map.first[0] + r) * cy), q = this.screenY(Math.min(this.rows.size, (map.first[0] + r + 1) * cy));
        ctx.fillStyle = ink('--void');
        ctx.globalAlpha = 0.82;
        ctx.fillRect(a, Math.min(p, q), b - a, Math.abs(q - p));
        ctx.globalAlpha = 1;
        ctx.strokeStyle = ink('--faint');
        ctx.lineWidth = 1;
        ctx.beginPath();
        ctx.moveTo(a, p); ctx.lineTo(b, q); ctx.moveTo(a, q); ctx.lineTo(b, p);
        ctx.globalAlpha = 0.35;
        ctx.stroke();
        ctx.globalAlpha = 1;
      }
    }
    const lines = (low, high, size, side, at) => { for (let k = Math.max(1, Math.ceil(low / side)); k * side < Math.min(high, size); k++) at(k * side); };
    for (const [colour, width] of [['rgb(0 0 0 / .35)', 2.5], ['rgb(255 255 255 / .8)', 1]]) {
      ctx.strokeStyle = colour;
      ctx.lineWidth = width;
      ctx.beginPath();
      const ends = [this.screenY(0), this.screenY(this.rows.size)], sides = [this.screenX(0), this.screenX(this.columns.size)];
      if (dx >= 6) lines(x0, x1, this.columns.size, cx, (x) => { ctx.moveTo(this.screenX(x), ends[0]); ctx.lineTo(this.screenX(x), ends[1]); });
      if (dy >= 6) lines(y0, y1, this.rows.size, cy, (y) => { ctx.moveTo(sides[0], this.screenY(y)); ctx.lineTo(sides[1], this.screenY(y)); });
      ctx.stroke();
    }
  }

  #drawPin(ctx) {
    const x = this.screenX(this.pin[1] + 0.5), y = this.screenY(this.pin[0] + 0.5);
    for (const [colour, width] of [['rgb(0 0 0 / .55)', 4], ['#fff', 2]]) {
      ctx.strokeStyle = colour;
      ctx.lineWidth = width;
      ctx.beginPath();
      ctx.arc(x, y, 6, 0, 2 * Math.PI);
      ctx.moveTo(x - 12, y); ctx.lineTo(x - 6, y); ctx.moveTo(x + 6, y); ctx.lineTo(x + 12, y);
      ctx.moveTo(x, y - 12); ctx.lineTo(x, y - 6); ctx.moveTo(x, y + 6); ctx.lineTo(x, y + 12);
      ctx.stroke();
    }
  }

  #axes(ctx, ink) {
    const { plot, window: [y0, y1, x0, x1] } = this, style = getComputedStyle(document.body);
    const clamp = (low, high, value) => Math.max(low, Math.min(high, value));
    const left = clamp(plot.x, plot.x + plot.w, this.screenX(0)), right = clamp(plot.x, plot.x + plot.w, this.screenX(this.columns.size));
    const edges = [this.screenY(0), this.screenY(this.rows.size)].map((y) => clamp(plot.y, plot.y + plot.h, y)).sort((a, b) => a - b);
    ctx.strokeStyle = ink('--line');
    ctx.lineWidth = 1;
    ctx.strokeRect(left + 0.5, edges[0] + 0.5, right - left - 1, edges[1] - edges[0] - 1);
    ctx.strokeStyle = ink('--faint');
    ctx.fillStyle = ink('--soft');
    ctx.font = `11px ${style.getPropertyValue('--mono') || 'monospace'}`;
    ctx.textAlign = 'center';
    ctx.textBaseline = 'top';
    let end = -Infinity;
    ctx.beginPath();
    for (const { at, text } of this.columns.ticks(x0, x1, plot.w, 84)) {
      const x = this.screenX(at), width = ctx.measureText(text).width;
      if (x < left - 0.5 || x > right + 0.5) continue;
      ctx.moveTo(x, edges[1]); ctx.lineTo(x, edges[1] + 4);
      if (x - width / 2 < end + 8 || x - width / 2 < 4 || x + width / 2 > this.box.clientWidth - 2) continue;
      ctx.fillText(text, x, edges[1] + 7);
      end = x + width / 2;
    }
    ctx.textAlign = 'right';
    ctx.textBaseline = 'middle';
    let used = Infinity, widest = 20;
    const ticks = this.rows.ticks(y0, y1, plot.h, 46).map(({ at, text }) => ({ y: this.screenY(at), text })).sort((a, b) => b.y - a.y);
    for (const { y, text } of ticks) {
      if (y < edges[0] - 0.5 || y > edges[1] + 0.5) continue;
      ctx.moveTo(left - 4, y); ctx.lineTo(left, y);
      if (y > used - 13) continue;
      ctx.fillText(text, left - 7, y);
      widest = Math.max(widest, ctx.measureText(text).width);
      used = y;
    }
    ctx.stroke();
    ctx.fillStyle = ink('--soft');
    ctx.font = `600 11.5px ${style.fontFamily}`;
    ctx.textAlign = 'center';
    ctx.textBaseline = 'alphabetic';
    ctx.fillText(this.columns.title, (left + right) / 2, Math.min(edges[1] + 34, this.box.clientHeight - 5));
    ctx.save();
    ctx.translate(Math.max(11, left - 17 - widest), (edges[0] + edges[1]) / 2);
    ctx.rotate(-Math.PI / 2);
    ctx.fillText(this.rows.title, 0, 0);
    ctx.restore();
  }
}
