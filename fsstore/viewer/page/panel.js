// What is written beside the picture: facts, attributes, chunks, and the same view as code.

import { ask, askNumbers } from './ask.js';

export function facts(list, rows) {
  const cells = [];
  for (const [name, value, big] of rows) {
    if (value === null || value === undefined || value === '') continue;
    const term = document.createElement('dt'), text = document.createElement('dd');
    term.textContent = name;
    text.textContent = value;
    if (big) text.className = 'big';
    if (!name) text.className = 'alone';
    cells.push(...(name ? [term] : []), text);
  }
  list.replaceChildren(...cells);
}

export function bytes(count) {
  const units = ['bytes', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let k = 0, n = count;
  while (n >= 1000 && k < units.length - 1) { n /= 1000; k++; }
  return k ? `${n >= 100 ? n.toFixed(0) : n.toPrecision(3)} ${units[k]}` : `${n} bytes`;
}

const times = (list) => list.map((each) => each ?? '?').join(' × ') || 'scalar';

/** What is said in the heading: of an array its type, shape and size, of a group how much is in it. */
export function chips(box, array, inside = []) {
  const count = (many, word) => (many ? [`${many.toLocaleString('en')} ${word}${many === 1 ? '' : 's'}`] : []);
  const texts = array ? [array.dtype, times(array.shape), bytes(array.bytes)] : ['group', ...count(inside.filter((each) => each.shape).length, 'array'), ...count(inside.filter((each) => !each.shape).length, 'group')];
  const made = texts.map((text, k) => {
    const chip = document.createElement('span');
    chip.className = 'chip';
    const strong = document.createElement(k ? 'span' : 'b');
    strong.textContent = text;
    chip.append(strong);
    return chip;
  });
  box.replaceChildren(...made);
}

export function arrayFacts(list, array) {
  const count = array.chunks.every(Boolean) ? array.shape.reduce((n, size, k) => n * Math.ceil(size / array.chunks[k]), 1) : null;
  facts(list, [
    ['format', array.driver],
    ['dimensions', array.names.some(Boolean) ? array.names.map((each, k) => each || `dim ${k}`).join(', ') : ''],
    ['chunks', array.chunks.every(Boolean) && array.rank ? `${times(array.chunks)}\n${count.toLocaleString('en')} of ${bytes(array.chunks.reduce((a, b) => a * b, array.itemsize))}` : ''],
    ['shards', array.shards && array.shards.every(Boolean) ? times(array.shards) : ''],
    ['codecs', array.codec ? array.codec.filter(Boolean).join(', ') : ''],
    ['fill value', array.fill_value],
    ['origin', array.origin.some(Boolean) ? array.origin.join(', ') : ''],
    ['levels', array.levels.length > 1 ? array.levels.map((each) => times(each.shape)).join('\n') : ''],
    ['URL', array.url],
  ]);
}

export function attributeFacts(list, attributes) {
  const text = (value) => (typeof value === 'string' ? value : JSON.stringify(value, null, typeof value === 'object' && JSON.stringify(value).length > 60 ? 1 : 0));
  const rows = Object.entries(attributes).map(([name, value]) => [name, text(value)]);
  facts(list, rows.length ? rows : [['', 'None.']]);
}

/** The chunk grid of the two dimensions that are drawn, with what is stored. */
export class ChunkMap {
  constructor(canvas, text) {
    this.canvas = canvas;
    this.text = text;
    this.known = new Map();
  }

  async load(array, along, at, window, signal) {
    const counts = along.map((k) => Math.ceil(array.shape[k] / array.chunks[k]));
    const from = counts.map((_, k) => Math.floor(window[2 * k] / array.chunks[along[k]]));
    const to = counts.map((count, k) => Math.min(count, Math.ceil(window[2 * k + 1] / array.chunks[along[k]])));
    const isWhole = counts[0] * counts[1] <= 1024;
    const low = isWhole ? [0, 0] : from, high = isWhole ? counts : to;
    if ((high[0] - low[0]) * (high[1] - low[1]) > 1024) return { counts, map: null };
    const query = { path: array.path, along: along.join(), at: at.join(), window: [low[0], high[0], low[1], high[1]].join() };
    const key = JSON.stringify(query);
    if (!this.known.has(key)) {
      const map = await askNumbers('chunks', query, signal);
      if (this.known.size > 50) this.known.clear();
      this.known.set(key, { ...map, first: low });
    }
    return { counts, map: this.known.get(key) };
  }

  draw({ counts, map }, window, array, along, up) {
    const { canvas } = this, ctx = canvas.getContext('2d'), scale = globalThis.devicePixelRatio || 1;
    const style = getComputedStyle(document.documentElement), ink = (name) => style.getPropertyValue(name).trim();
    const rows = map ? map.shape[0] : counts[0], columns = map ? map.shape[1] : counts[1], w = canvas.clientWidth || 270;
    const side = Math.max(1, Math.min(28, w / columns, 220 / rows)), h = Math.max(24, Math.round(side * rows));
    canvas.style.setProperty('height', `${h}px`);
    canvas.width = Math.round(w * scale);
    canvas.height = Math.round(h * scale);
    ctx.setTransform(scale, 0, 0, scale, 0, 0);
    ctx.clearRect(0, 0, w, h);
    const total = counts[0] * counts[1];
    if (!map) { this.text.textContent = `${total.toLocaleString('en')} chunks; zoom in to see which are stored`; return; }
    const gap = side > 5 ? 1 : 0;
    let stored = 0, unknown = 0;
    for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) {
      const value = map.values[r * columns + c], y = (up ? rows - 1 - r : r) * side;
      stored += value === 1;
      unknown += value === 2;
      ctx.fillStyle = value === 1 ? ink('--accent') : ink('--void');
      ctx.fillRect(c * side, y, side - gap, side - gap);
      if (value !== 1 && side > 5) { ctx.strokeStyle = ink('--hatch'); ctx.lineWidth = 1; ctx.strokeRect(c * side + 0.5, y + 0.5, side - gap - 1, side - gap - 1); }
    }
    const [cy, cx] = along.map((k) => array.chunks[k]), px = (x) => (x / cx - map.first[1]) * side, py = (y) => (y / cy - map.first[0]) * side;
    const top = up ? rows * side - py(Math.min(window[1], array.shape[along[0]])) : py(Math.max(0, window[0]));
    const bottom = up ? rows * side - py(Math.max(0, window[0])) : py(Math.min(window[1], array.shape[along[0]]));
    ctx.strokeStyle = ink('--warn');
    ctx.lineWidth = 1.6;
    const left = Math.max(0.8, px(Math.max(0, window[2]))), right = Math.min(columns * side - gap - 0.8, px(Math.min(window[3], array.shape[along[1]])));
    ctx.strokeRect(left, Math.max(0.8, top), Math.max(2, right - left), Math.max(2, Math.min(h - 0.8, bottom - gap) - Math.max(0.8, top)));
    const asked = rows * columns, part = asked < total ? ` seen, of ${total.toLocaleString('en')} in this plane` : ' in this plane';
    this.text.textContent = unknown === asked ? 'It is not known which chunks are stored.' : `${stored.toLocaleString('en')} of ${asked.toLocaleString('en')} chunks${part} are stored.`;
  }
}

/** The view that is seen as code and as a command. */
export function snippets(box, array, state, seen, columnsOf) {
  const parts = array.shape.map((size, k) => {
    const drawn = columnsOf.indexOf(k);
    if (drawn < 0) return String(state.at[k] + array.origin[k]);
    const [low, high] = seen.window.slice(2 * drawn, 2 * drawn + 2);
    if (low === 0 && high === size) return ':';
    return `${low + array.origin[k]}:${high + array.origin[k]}`;
  });
  const selection = parts.join(', '), quoted = JSON.stringify(array.url);
  const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const texts = [
    ['Python', array.url ? `import fsstore as ts\n\nstore = ts.open(${quoted}).result()\nvalues = store[${selection}].read().result()` : `values = store[${selection}].read().result()`],
    ['Command', array.url ? `fsstore cat ${shell(array.url)} ${shell(selection)}` : ''],
    ['Address of this view', location.href],
  ];
  box.replaceChildren(...texts.filter(([, text]) => text).map(([name, text]) => {
    const snippet = document.createElement('div'), head = document.createElement('div'), code = document.createElement('pre'), copy = document.createElement('button');
    snippet.className = 'snippet';
    head.append(name, copy);
    code.textContent = text;
    copy.textContent = 'copy';
    copy.addEventListener('click', async () => {
      try { await navigator.clipboard.writeText(text); copy.textContent = 'copied'; } catch { getSelection().selectAllChildren(code); copy.textContent = 'selected'; }
      setTimeout(() => { copy.textContent = 'copy'; }, 1500);
    });
    snippet.append(head, code);
    return snippet;
  }));
}

/** What is in a group: a line for each array and group, which opens it. */
export function members(box, inside, path, opened) {
  const made = document.createElement('table'), head = made.createTHead().insertRow();
  made.className = 'members';
  for (const text of ['name', 'what it is', 'type', 'shape']) {
    const cell = document.createElement('th');
    cell.textContent = text;
    head.append(cell);
  }
  const body = made.createTBody();
  for (const each of inside) {
    const line = body.insertRow(), link = document.createElement('a');
    link.textContent = path ? each.path.slice(path.length + 1) : each.path;
    link.href = `#${new URLSearchParams({ path: each.path })}`;
    link.addEventListener('click', (event) => { event.preventDefault(); opened(each.path); });
    line.insertCell().append(link);
    for (const text of [each.about, each.shape ? each.dtype : each.isImage ? 'image' : 'group', each.shape ? times(each.shape) : '']) line.insertCell().textContent = text ?? '';
  }
  box.replaceChildren(made);
}

export async function table(box, array, state) {
  const along = array.rank > 1 ? [state.rows, state.columns] : array.rank ? [0] : [];
  const found = await ask('table', { path: array.path, along: along.join(), at: state.at.join(), window: along.map((k) => `0,${array.shape[k]}`).join() });
  const made = document.createElement('table');
  found.rows.forEach((row, r) => {
    const line = made.insertRow(), head = document.createElement('th');
    head.textContent = String(r);
    line.append(head);
    row.forEach((value) => { line.insertCell().textContent = value; });
  });
  box.replaceChildren(made);
}
